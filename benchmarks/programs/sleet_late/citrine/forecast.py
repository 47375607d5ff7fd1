#!/usr/bin/env python
"""One-step-ahead forecaster for short sensor windows."""
import argparse
import dataclasses
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pipeline


@dataclasses.dataclass
class Ctx:
    rank: int
    world: int
    seed: int
    salt: tuple = ()


def make_ctx(seed):
    rank, world = dist.get_rank(), dist.get_world_size()
    return Ctx(rank=rank, world=world, seed=seed, salt=(rank,))


class Forecaster(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x.unsqueeze(-1))
        return self.out(h[:, -1])


def say(ctx, msg):
    if ctx.rank == 0:
        print(f"[{time.strftime('%H:%M:%S')}] {msg}", file=sys.stderr, flush=True)


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--steps-per-epoch", type=int, default=12)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=1234)
    a = ap.parse_args(argv)

    dist.init_process_group(backend="gloo")
    ctx = make_ctx(a.seed)
    torch.manual_seed(a.seed)
    bank = pipeline.series_bank()
    net = DDP(Forecaster())
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    for epoch in range(a.epochs):
        running = 0.0
        for x, y in pipeline.epoch_batches(bank, ctx, epoch, a.batch, a.steps_per_epoch):
            loss = nn.functional.smooth_l1_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            running += loss.item()
        mean = torch.tensor(running / a.steps_per_epoch)
        dist.all_reduce(mean)
        say(ctx, f"epoch {epoch}: loss {mean.item() / ctx.world:.4f}")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
