import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def teacher_data(n, seed, dim=32):
    g0 = torch.Generator().manual_seed(0)
    w1, w2 = torch.randn(dim, 16, generator=g0) / dim ** 0.5, torch.randn(16, 5, generator=g0)
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
    return x, (torch.tanh(x @ w1 * 2) @ w2).argmax(1)


class Member:
    """One individual of the population: a network, its optimizer and its hyper-parameters."""

    def __init__(self, rank, dim=32):
        self.rng = random.Random(900 + rank)
        torch.manual_seed(40 + rank)
        self.net = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 5))
        self.hp = {"lr": 10 ** self.rng.uniform(-3.5, -0.5), "wd": 10 ** self.rng.uniform(-6, -2)}
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.hp["lr"], momentum=0.9, weight_decay=self.hp["wd"])
        self.gen = torch.Generator().manual_seed(70 + rank)

    def train(self, x, y, steps, bsz=64):
        self.net.train()
        for _ in range(steps):
            ix = torch.randint(0, len(x), (bsz,), generator=self.gen)
            self.opt.zero_grad()
            F.cross_entropy(self.net(x[ix]), y[ix]).backward()
            self.opt.step()

    @torch.no_grad()
    def score(self, x, y):
        self.net.eval()
        return (self.net(x).argmax(1) == y).float().mean().item()

    def adopt(self, vec, hp):
        vector_to_parameters(vec, self.net.parameters())
        self.hp = {k: v * self.rng.choice([0.8, 1.25]) for k, v in hp.items()}
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.hp["lr"], momentum=0.9, weight_decay=self.hp["wd"])


def exploit(member, table, rank):
    """The lowest member takes the weights of the best one; all ranks compute the same plan."""
    order = sorted(range(len(table)), key=lambda r: (table[r][0], r))
    loser, winner = order[0], order[-1]
    if table[winner][0] - table[loser][0] < 0.01:
        return None
    if rank == winner:
        dist.send(parameters_to_vector(member.net.parameters()).detach(), dst=loser)
    elif rank == loser:
        buf = torch.empty_like(parameters_to_vector(member.net.parameters()).detach())
        dist.recv(buf, src=winner)
        member.adopt(buf, table[winner][1])
    return winner, loser


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--intervals", type=int, default=10)
    ap.add_argument("--steps", type=int, default=300)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member = Member(rank)
    train, val = teacher_data(8000, 1), teacher_data(2000, 2)
    table = [None] * world
    for t in range(args.intervals):
        member.train(*train, args.steps)
        dist.all_gather_object(table, (member.score(*val), member.hp))
        move = exploit(member, table, rank) if t < args.intervals - 1 else None
        if rank == 0:
            line = " ".join(f"[{r}] {s:.3f} lr={h['lr']:.1e}" for r, (s, h) in enumerate(table))
            print(f"interval {t} {line} copy={move}", flush=True)
    best = max(range(world), key=lambda r: table[r][0])
    if rank == best:
        torch.save({"net": member.net.state_dict(), "hp": member.hp, "score": table[best][0]}, "best_member.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
