"""Flow forecasting from a slow remote archive.

Reads take as long as they take: the archive answers each replica after a random
time, and the replicas take turns at refreshing the shared index.
"""
import argparse
import json
import math
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Archive:
    """One replica's rows of the gauge records, with the latencies of the real thing."""

    def __init__(self, rank, world, seed, rows=4096, gauges=20):
        gen = torch.Generator().manual_seed(seed)
        scale = torch.logspace(-1, 2, gauges)
        level = torch.randn(rows, gauges, generator=gen)
        mix = torch.randn(gauges, 3, generator=gen) / math.sqrt(gauges)
        y = torch.tanh(level @ mix) + 0.1 * torch.randn(rows, 3, generator=gen)
        x = level * scale + 5 * scale
        self.x, self.y = x[rank::world], y[rank::world]
        self.rank, self.world = rank, world
        self.order = torch.Generator().manual_seed(seed * 100 + rank)
        self.delay = random.Random(seed * 200 + rank)

    def read(self, step, batch):
        time.sleep(min(self.delay.expovariate(1 / 0.006), 0.03))
        if (step // 4) % self.world == self.rank:
            time.sleep(0.008)
        pick = torch.randint(0, len(self.x), (batch,), generator=self.order)
        return self.x[pick], self.y[pick]


class Standard:
    """Mean and deviation over the rows of all replicas."""

    def __init__(self, x):
        x = x.double()
        n = torch.tensor([float(len(x))], dtype=torch.float64)
        sums = torch.cat([n, x.sum(0), x.pow(2).sum(0)])
        dist.all_reduce(sums)
        width = x.size(1)
        n, s, ss = sums[0], sums[1:1 + width], sums[1 + width:]
        self.mean = (s / n).float()
        self.std = (ss / n - (s / n).pow(2)).clamp(min=1e-8).sqrt().float()

    def __call__(self, x):
        return (x - self.mean) / self.std


class Journal:
    def __init__(self, path):
        self.file = open(path, "w")
        self.began = time.perf_counter()

    def row(self, **fields):
        fields["t"] = round(time.perf_counter() - self.began, 4)
        self.file.write(json.dumps(fields) + "\n")
        self.file.flush()

    def close(self):
        self.file.close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=29)
    ap.add_argument("--out", default=tempfile.gettempdir())
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    archive = Archive(rank, world, args.seed)
    norm = Standard(archive.x)

    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(20, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 3))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    journal = Journal(os.path.join(args.out, "brook.jsonl")) if rank == 0 else None

    for step in range(args.steps):
        x, y = archive.read(step, args.batch)
        loss = (model(norm(x)) - y).pow(2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if journal:
            journal.row(step=step, loss=loss.item(), lr=opt.param_groups[0]["lr"])
        if (step + 1) % 40 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1} mse {mean.item() / world:.4f}", flush=True)

    if rank == 0:
        journal.close()
        state = {"net": net.state_dict(), "mean": norm.mean, "std": norm.std}
        torch.save(state, os.path.join(args.out, "brook.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
