"""Population-based training: two members on every process, the weak copy the strong."""
import argparse
import os
import random
import tempfile
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def moons(count, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (count,), generator=g)
    a = torch.rand(count, generator=g) * 3.14159
    x = torch.stack([a.cos() + y, (a.sin() - 0.4) * (1 - 2 * y)], 1)
    return x + 0.18 * torch.randn(count, 2, generator=g), y


def network():
    return nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))


@dataclass
class Member:
    number: int
    lr: float
    decay: float
    net: nn.Module = field(default_factory=network)
    score: float = 0.0
    parent: int = -1

    def __post_init__(self):
        self.gen = torch.Generator().manual_seed(900 + self.number)
        self.tune()

    def tune(self):
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=0.9, weight_decay=self.decay)

    def train(self, data, steps, batch):
        x, y = data
        for _ in range(steps):
            pick = torch.randint(len(y), (batch,), generator=self.gen)
            loss = F.cross_entropy(self.net(x[pick]), y[pick])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def judge(self, data):
        x, y = data
        self.score = -F.cross_entropy(self.net(x), y).item()

    def flat(self):
        return torch.cat([p.detach().flatten() for p in self.net.parameters()])

    @torch.no_grad()
    def take(self, flat):
        params = list(self.net.parameters())
        for p, piece in zip(params, flat.split([p.numel() for p in params])):
            p.copy_(piece.view_as(p))


class Population:
    def __init__(self, per_rank, seed):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.per_rank = per_rank
        self.rng = random.Random(seed)
        self.home = []
        for number in range(per_rank * self.world):
            lr, decay = 10 ** self.rng.uniform(-3, -0.7), 10 ** self.rng.uniform(-5, -2)
            if self.owner(number) == self.rank:
                torch.manual_seed(seed * 100 + number)
                self.home.append(Member(number, lr, decay))

    def owner(self, number):
        return number // self.per_rank

    def local(self, number):
        return self.home[number - self.rank * self.per_rank]

    def table(self):
        parts = [None] * self.world
        dist.all_gather_object(parts, [(m.number, m.score, m.lr, m.decay) for m in self.home])
        return sorted((row for part in parts for row in part), key=lambda r: -r[1])

    def evolve(self, table, fraction=0.25):
        count = max(1, int(len(table) * fraction))
        for strong, weak in zip(table[:count], reversed(table[-count:])):
            size = sum(p.numel() for p in self.home[0].net.parameters())
            flat = self.local(strong[0]).flat() if self.owner(strong[0]) == self.rank else torch.empty(size)
            dist.broadcast(flat, self.owner(strong[0]))
            lr, decay = strong[2] * self.rng.choice([0.8, 1.25]), strong[3] * self.rng.choice([0.8, 1.25])
            if self.owner(weak[0]) == self.rank:
                member = self.local(weak[0])
                member.take(flat)
                member.lr, member.decay, member.parent = lr, decay, strong[0]
                member.tune()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--per-rank", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--steps", type=int, default=25)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--seed", type=int, default=8)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "population"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    train, held = moons(1000, 1), moons(400, 2)
    herd = Population(args.per_rank, args.seed)
    for rnd in range(args.rounds):
        for member in herd.home:
            member.train(train, args.steps, args.batch)
            member.judge(held)
        table = herd.table()
        if herd.rank == 0:
            best = table[0]
            print(f"round {rnd} best member {best[0]} loss {-best[1]:.4f} lr {best[2]:.4f} "
                  f"worst {-table[-1][1]:.4f}", flush=True)
        if rnd < args.rounds - 1:
            herd.evolve(table)
    os.makedirs(args.out, exist_ok=True)
    for member in herd.home:
        torch.save({"number": member.number, "lr": member.lr, "score": member.score,
                    "parent": member.parent, "net": member.net.state_dict()},
                   os.path.join(args.out, f"member_{member.number}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
