"""Accumulated micro-batches with a hand-written overlapped gradient reduction."""
import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from overlap import OverlappedReducer


def polynomials(n, seed):
    g = torch.Generator().manual_seed(seed)
    roots = torch.rand(n, 3, generator=g) * 2 - 1
    grid = torch.linspace(-1, 1, 24)
    curve = (grid[None, :, None] - roots[:, None, :]).prod(-1) * 2
    curve = curve + 0.02 * torch.randn(curve.shape, generator=g)
    return TensorDataset(curve, roots.sort(1).values)


class RootFinder(nn.Module):
    def __init__(self, width=96, depth=3):
        super().__init__()
        self.inp = nn.Linear(24, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(),
                                                  nn.Linear(width, width)) for _ in range(depth))
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h)


def micro_groups(loader, k):
    group = []
    for item in loader:
        group.append(item)
        if len(group) == k:
            yield group
            group = []
    if group:
        yield group


def train_group(model, reducer, opt, group, clip):
    rows = sum(len(x) for x, _ in group)
    total = 0.0
    for i, (x, y) in enumerate(group):
        with contextlib.nullcontext() if i == len(group) - 1 else reducer.local():
            loss = F.smooth_l1_loss(model(x), y, beta=0.1)
            (loss * (len(x) / rows)).backward()
        total += loss.item() * len(x)
    buckets = reducer.finish()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    opt.step()
    opt.zero_grad(set_to_none=True)
    return total, rows, buckets


@torch.no_grad()
def mean_error(model, data, rank, world):
    model.eval()
    x, y = (t[rank::world] for t in data.tensors)
    s = torch.tensor([(model(x) - y).abs().mean(1).sum().item(), float(len(y))])
    dist.all_reduce(s)
    model.train()
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=71)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = RootFinder()
    reducer = OverlappedReducer(model)
    train, held = polynomials(2000, 1), polynomials(500, 2)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    groups = -(-len(loader) // args.accumulate)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * groups, pct_start=0.15)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        s, t0 = torch.zeros(2), time.perf_counter()
        for group in micro_groups(loader, args.accumulate):
            total, rows, buckets = train_group(model, reducer, opt, group, args.clip)
            sched.step()
            s += torch.tensor([total, float(rows)])
        dist.all_reduce(s)
        err = mean_error(model, held, rank, world)
        if rank == 0:
            print(f"epoch {epoch} loss {(s[0] / s[1]).item():.4f} error {err:.4f} rows {int(s[1])} buckets {buckets} "
                  f"{time.perf_counter() - t0:.2f}s", flush=True)
    if rank == 0:
        os.makedirs("runs/pepper", exist_ok=True)
        torch.save(model.state_dict(), "runs/pepper/model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
