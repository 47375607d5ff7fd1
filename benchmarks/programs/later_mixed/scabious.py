"""Population that halves: after each stage the worse half leaves and its processes end early."""
import argparse
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Candidate:
    """One setting of learning rate and width, trained on its own."""

    GRID = [(0.3, 16), (0.05, 16), (0.01, 32), (0.003, 32)]

    def __init__(self, rank):
        self.lr, width = self.GRID[rank]
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 3))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=0.9)
        self.gen = torch.Generator().manual_seed(20 + rank)

    def batch(self, gen, size):
        x = torch.randn(size, 10, generator=gen)
        w = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
        return x, (x @ w).argmax(1)

    def train(self, steps):
        for _ in range(steps):
            x, y = self.batch(self.gen, 32)
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def score(self):
        x, y = self.batch(torch.Generator().manual_seed(777), 512)
        return F.cross_entropy(self.net(x), y)


def compare(score, group, members):
    """Returns the members that stay, the same list on all of them."""
    parts = [torch.empty(1) for _ in members]
    dist.all_gather(parts, score.reshape(1), group=group)
    table = sorted((float(p), m) for p, m in zip(parts, members))
    return sorted(m for _, m in table[:max(1, len(members) // 2)]), table


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20, help="steps of the first stage, doubled every stage")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    members, group = list(range(world)), dist.group.WORLD
    me, steps, stage = Candidate(rank), args.steps, 0

    while len(members) > 1:
        me.train(steps)
        stay, table = compare(me.score(), group, members)
        if rank == members[0]:
            print(f"stage {stage}: " + ", ".join(f"#{m} {s:.3f}" for s, m in table), flush=True)
        if rank not in stay:
            print(f"candidate {rank} (lr {me.lr}) leaves after stage {stage}", flush=True)
            sys.exit(0)
        members, steps, stage = stay, steps * 2, stage + 1
        if len(members) > 1:
            group = dist.new_group(members, use_local_synchronization=True)
    me.train(steps)
    print(f"winner {rank}: lr {me.lr} held-out {me.score().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
