"""Forecasting with a patch mixer and large effective batches.

Micro-batches are accumulated so that two workers reach the batch size of the paper.
"""
import argparse
import contextlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Windows(Dataset):
    def __init__(self, length, past, future, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length, dtype=torch.float32)
        y = torch.sin(t / 9) + 0.6 * torch.sin(t / 37 + 1) + 0.2 * torch.randn(length, generator=g)
        self.y, self.past, self.future = y, past, future

    def __len__(self):
        return len(self.y) - self.past - self.future

    def __getitem__(self, i):
        mid = i + self.past
        return self.y[i:mid], self.y[mid:mid + self.future]


class Mixer(nn.Module):
    def __init__(self, past, future, patch=8, width=48, depth=3):
        super().__init__()
        self.patch = patch
        n = past // patch
        self.inp = nn.Linear(patch, width)
        self.time = nn.ModuleList(nn.Sequential(nn.LayerNorm(n), nn.Linear(n, n), nn.GELU(), nn.Linear(n, n)) for _ in range(depth))
        self.chan = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                                nn.Dropout(0.1), nn.Linear(4 * width, width)) for _ in range(depth))
        self.out = nn.Linear(n * width, future)

    def forward(self, x):
        h = self.inp(x.unflatten(1, (-1, self.patch)))
        for t, c in zip(self.time, self.chan):
            h = h + t(h.transpose(1, 2)).transpose(1, 2)
            h = h + c(h)
        return self.out(h.flatten(1))


class Accumulator:
    def __init__(self, model, optimizer, window, clip):
        self.model, self.optimizer, self.window, self.clip = model, optimizer, window, clip
        self.count = 0

    def micro_step(self, x, y):
        last = (self.count + 1) % self.window == 0
        with contextlib.nullcontext() if last else self.model.no_sync():
            pred = self.model(x)
            loss = F.huber_loss(pred, y)
            (loss / self.window).backward()
        self.count += 1
        if last:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), last


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--micro-batch", type=int, default=16)
    ap.add_argument("--window", type=int, default=8)
    ap.add_argument("--length", type=int, default=2700)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=12)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    data = Windows(args.length, 64, 12, args.seed)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, drop_last=True)
    usable = len(loader) // args.window * args.window
    model = DistributedDataParallel(Mixer(64, 12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * usable // args.window)
    acc = Accumulator(model, optimizer, args.window, clip=1.0)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        began, total = time.perf_counter(), torch.zeros(2)
        for i, (x, y) in enumerate(loader):
            if i == usable:
                break
            loss, stepped = acc.micro_step(x, y)
            total += torch.stack([loss, torch.ones(())])
            if stepped:
                schedule.step()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} huber {total[0] / total[1]:.4f} {time.perf_counter() - began:.1f}s", flush=True)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), args.out / "mixer.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
