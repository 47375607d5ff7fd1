"""Sparse depth completion on synthetic scanlines."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from losses import depth_loss, rel_error, usable

log = logging.getLogger("depth")


class Scanlines(Dataset):
    def __init__(self, n, width, seed, empty_runs=()):
        g = torch.Generator().manual_seed(seed)
        phase = torch.rand(n, 3, 1, generator=g) * 6.28
        freq = 1 + 5 * torch.rand(n, 3, 1, generator=g)
        grid = torch.linspace(0, 6.28, width)
        self.depth = 2.5 + torch.sin(freq * grid + phase).sum(1)
        self.mask = torch.rand(n, width, generator=g) < 0.2
        for a, b in empty_runs:
            self.mask[a:b] = False
        self.noise = 0.05 * torch.randn(n, width, generator=g)

    def __len__(self):
        return len(self.depth)

    def __getitem__(self, i):
        seen = torch.where(self.mask[i], self.depth[i] + self.noise[i], torch.zeros(()))
        return torch.cat([seen, self.mask[i].float()]), self.depth[i], self.mask[i]


class BlockSampler(DistributedSampler):
    """Gives every worker a contiguous stretch of the drive instead of interleaved frames."""

    def __iter__(self):
        per = len(self.dataset) // self.num_replicas
        return iter(range(self.rank * per, (self.rank + 1) * per))

    def __len__(self):
        return len(self.dataset) // self.num_replicas


def make_model(width, hidden):
    return nn.Sequential(
        nn.Linear(2 * width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, width)
    )


def train_epoch(model, loader, opt, epoch, rank):
    skipped, start = 0, time.time()
    for i, (x, depth, mask) in enumerate(loader):
        pred = model(x)
        loss = depth_loss(pred, depth, mask)
        if not usable(loss):
            skipped += 1
            log.warning("epoch %d batch %d: loss is %s, skipping", epoch, i, loss.item())
            continue
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if i % 30 == 0 and rank == 0:
            log.info("epoch %d batch %3d  loss %.4f  (%.1fs)", epoch, i, loss.item(), time.time() - start)
    return skipped


@torch.no_grad()
def evaluate(model, loader):
    total = torch.zeros(2)
    for x, depth, mask in loader:
        total += torch.stack([rel_error(model(x), depth, mask), torch.tensor(1.0)])
    out = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(out, total)
    total = torch.stack(out).sum(0)
    return (total[0] / total[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--frames", type=int, default=6400)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--hidden", type=int, default=320)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")

    tunnel = (int(args.frames * 0.81), int(args.frames * 0.81) + 3 * args.batch)
    train = Scanlines(args.frames, args.width, seed=1, empty_runs=[tunnel])
    val = Scanlines(640, args.width, seed=2)
    loader = DataLoader(train, batch_size=args.batch, sampler=BlockSampler(train, world, rank), drop_last=True)
    val_loader = DataLoader(val, batch_size=args.batch, sampler=BlockSampler(val, world, rank))

    torch.manual_seed(0)
    model = DDP(make_model(args.width, args.hidden))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        skipped = train_epoch(model, loader, opt, epoch, rank)
        err = evaluate(model.module, val_loader)
        if rank == 0:
            log.info("epoch %d  relative error %.4f  skipped %d", epoch, err, skipped)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
