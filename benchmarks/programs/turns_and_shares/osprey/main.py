"""Small image classifier whose validation runs beside the training."""
import argparse
import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from watcher import Watcher


def gratings(count, side, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (count,), generator=g)
    axis = torch.arange(side).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    angle = (y * 0.7854).view(-1, 1, 1)
    phase = torch.rand(count, 1, 1, generator=g) * 6.28
    img = torch.sin(1.1 * (xx * angle.cos() + yy * angle.sin()) + phase)
    img = img + 0.9 * torch.randn(count, side, side, generator=g)
    return TensorDataset(img.unsqueeze(1), y)


def network():
    return nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--side", type=int, default=12)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--watch-every", type=int, default=10)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=25)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "gratings"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = network()
    watch_group = dist.new_group()
    held = DataLoader(gratings(384, args.side, 2), 64,
                      sampler=DistributedSampler(range(384), world, rank, shuffle=False))
    watcher = Watcher(copy.deepcopy(net), held, watch_group)

    ddp = DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    data = gratings(1536, args.side, 1)
    sampler = DistributedSampler(data, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            total += loss.detach()
            if step % args.watch_every == 0:
                watcher.snapshot(step, net.state_dict())
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / world:.4f}", flush=True)

    results = watcher.finish()
    if rank == 0:
        for at, nll, acc in results:
            print(f"snapshot {at} nll {nll:.4f} accuracy {acc:.3f}", flush=True)
        os.makedirs(args.out, exist_ok=True)
        torch.save({"net": net.state_dict(), "watched": results}, os.path.join(args.out, "gratings.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
