import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from mining import global_hard_mask


def patches(n, seed):
    """Candidate windows in scan order: the first half of a scene is mostly empty background."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 64, generator=g)
    busy = torch.arange(n) % 512 >= 256
    y = (torch.rand(n, generator=g) < torch.where(busy, 0.4, 0.01)).long() * torch.randint(1, 5, (n,), generator=g)
    centres = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)) * 0.55
    return x + centres[y], y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=7)
    ap.add_argument("--scene", type=int, default=512)
    ap.add_argument("--keep", type=int, default=96)
    ap.add_argument("--lr", type=float, default=0.03)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5)))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    x, y = patches(30 * args.scene, 3)
    xv, yv = patches(8 * args.scene, 4)
    step = 0
    for epoch in range(args.epochs):
        total, used = 0.0, torch.zeros(world, dtype=torch.long)
        for at in range(0, len(x), args.scene):     # scenes in recorded order
            part = slice(at + rank * args.scene // world, at + (rank + 1) * args.scene // world)
            xs, ys = x[part], y[part]
            with torch.no_grad():
                first = F.cross_entropy(model.module(xs), ys, reduction="none")
            mask = global_hard_mask(first, args.keep)
            used[rank] += mask.sum()
            # the mean is over the kept rows of all ranks; DDP divides by the number of ranks
            loss = F.cross_entropy(model(xs[mask]), ys[mask], reduction="sum") * world / args.keep
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() / world
            step += 1
        stat = torch.tensor([total])
        dist.all_reduce(stat)
        dist.all_reduce(used)
        model.eval()
        with torch.no_grad():
            acc = (model.module(xv).argmax(1) == yv).float().mean()
        model.train()
        logging.info("epoch %d step %d hard loss %.6f rows kept by rank %s accuracy %.4f", epoch, step, stat.item() / 30, used.tolist(), acc)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
