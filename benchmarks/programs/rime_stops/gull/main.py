"""Decentralised SGD on a ring, heterogeneous regression tasks."""
import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from gossip import RingAverager, consensus_gap


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rounds", type=int, default=30)
    p.add_argument("--local-steps", type=int, default=12)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--report", type=int, default=5)
    return p.parse_args()


class LocalTask:
    def __init__(self, rank, split=0, dim=32):
        g = torch.Generator().manual_seed(11)
        self.w = torch.randn(dim, 4, generator=g)
        self.shift = 0.3 * rank
        self.g = torch.Generator().manual_seed(500 + rank + 100 * split)
        self.dim = dim

    def batch(self, n):
        x = torch.randn(n, self.dim, generator=self.g) + self.shift
        y = torch.tanh(x @ self.w / self.dim ** 0.5)
        return x, y + 0.01 * torch.randn(y.shape, generator=self.g)


def build(hidden):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                         nn.Linear(hidden, 4))


def evaluate(net, rank):
    x, y = LocalTask(rank, split=1).batch(512)
    with torch.no_grad():
        err = F.mse_loss(net(x), y)
    dist.all_reduce(err)
    return err.item() / dist.get_world_size()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world < 3:
        sys.exit("a ring needs three workers or more")
    net = build(args.hidden)
    task = LocalTask(rank)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    ring = RingAverager(rank, world)

    for rnd in range(1, args.rounds + 1):
        total = 0.0
        for _ in range(args.local_steps):
            x, y = task.batch(args.batch)
            loss = F.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        ring.mix(net.parameters())
        if rnd % args.report == 0:
            err, gap = evaluate(net, rank), consensus_gap(net.parameters())
            if rank == 0:
                print(f"round {rnd:3d} local {total / args.local_steps:.4f} "
                      f"test {err:.4f} gap {gap:.4f}", flush=True)

    if rank == 0:
        torch.save(net.state_dict(), "ring_worker0.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
