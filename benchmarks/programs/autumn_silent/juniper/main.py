"""Gradual unfreezing from the head down; the parallel wrapper is rebuilt for every phase."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ema import WeightEMA

log = logging.getLogger("finetune")


class Stage(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class StagedNet(nn.Module):
    def __init__(self, in_dim, dim, depth, classes):
        super().__init__()
        self.stem = nn.Linear(in_dim, dim)
        self.stages = nn.ModuleList(Stage(dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        for s in self.stages:
            x = s(x)
        return self.head(x)

    def unfreeze(self, phase):
        self.requires_grad_(False)
        open_parts = [self.head] + list(self.stages)[len(self.stages) - phase:]
        if phase >= len(self.stages):
            open_parts.append(self.stem)
        for part in open_parts:
            part.requires_grad_(True)
        return open_parts


class Task:
    def __init__(self, seed, in_dim=20, classes=7):
        shared = torch.Generator().manual_seed(321)
        self.w = torch.randn(in_dim, 32, generator=shared)
        self.v = torch.randn(32, classes, generator=shared)
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n):
        x = torch.randn(n, self.w.size(0), generator=self.gen)
        return x, (torch.sin(x @ self.w * 0.1) @ self.v).argmax(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps_per_phase", type=int, default=60)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--layer_decay", type=float, default=0.7)
    p.add_argument("--seed", type=int, default=12)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    model = StagedNet(20, 64, args.depth, 7)
    ema = WeightEMA(model, decay=0.95)
    train, val = Task(args.seed * 50 + rank), Task(999)
    val_x, val_y = val.batch(512)
    shard = slice(rank * 512 // world, (rank + 1) * 512 // world)

    for phase in range(args.depth + 1):
        parts = model.unfreeze(phase)
        ddp = DDP(model)
        groups = [{"params": part.parameters(), "lr": args.lr * args.layer_decay ** i} for i, part in enumerate(parts)]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
        for step in range(args.steps_per_phase):
            x, y = train.batch(args.batch)
            loss = F.cross_entropy(ddp(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            ema.update(model)
        with ema.applied(model), torch.no_grad():
            hits = (model(val_x[shard]).argmax(1) == val_y[shard]).float().sum()
        dist.all_reduce(hits)
        if rank == 0:
            n = sum(q.numel() for q in model.parameters() if q.requires_grad)
            log.info("phase %d trainable %d train loss %.4f ema val acc %.4f", phase, n, loss.item(), hits.item() / 512)
        del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
