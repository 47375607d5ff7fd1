"""Population-based training: one member per rank, exploit and explore every round."""
import argparse
import json
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Member:
    def __init__(self, rank):
        self.rng = random.Random(17 * (rank + 1))
        self.hp = {"lr": 10 ** self.rng.uniform(-4, -1.5), "drop": self.rng.uniform(0.0, 0.4)}
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Dropout(self.hp["drop"]), nn.Linear(40, 3))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=self.hp["lr"])

    def train(self, loader):
        self.net.train()
        for x, y in loader:
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def score(self, x, y):
        self.net.eval()
        return (self.net(x).argmax(1) == y).float().mean().item()

    def adopt(self, hp):
        self.hp = {k: v * self.rng.choice([0.8, 1.25]) for k, v in hp.items()}
        self.net[2].p = min(0.5, self.hp["drop"])
        self.opt = torch.optim.Adam(self.net.parameters(), lr=self.hp["lr"])


def exchange(member, score):
    rank, world = dist.get_rank(), dist.get_world_size()
    table = [None] * world
    dist.all_gather_object(table, (score, member.hp))
    ranking = sorted(range(world), key=lambda r: table[r][0])
    worst, best = ranking[0], ranking[-1]
    if worst == best or table[worst][0] == table[best][0]:
        return table
    if rank == best:
        for p in member.net.parameters():
            dist.send(p.detach(), dst=worst)
    elif rank == worst:
        with torch.no_grad():
            for p in member.net.parameters():
                dist.recv(p.data, src=best)
        member.adopt(table[best][1])
    return table


def problem():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(900, 12, generator=g)
    y = (x[:, :3] ** 2).argmax(1)
    return TensorDataset(x[:600], y[:600]), (x[600:], y[600:])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--bs", type=int, default=50)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    member = Member(dist.get_rank())
    train, (vx, vy) = problem()
    loader = DataLoader(train, batch_size=args.bs, shuffle=True)
    for r in range(args.rounds):
        member.train(loader)
        table = exchange(member, member.score(vx, vy))
        if dist.get_rank() == 0:
            print(f"round {r}", json.dumps([[round(s, 3), round(h["lr"], 5)] for s, h in table]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
