import argparse
import copy
import json
import math
import os
import random
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Hyper:
    lr: float
    weight_decay: float
    dropout: float

    @classmethod
    def sample(cls, rng: random.Random) -> "Hyper":
        return cls(10 ** rng.uniform(-3.3, -1.7), 10 ** rng.uniform(-5, -2), rng.uniform(0.0, 0.4))

    def perturb(self, rng: random.Random) -> "Hyper":
        f = lambda v: v * rng.choice([0.8, 1.25])
        return Hyper(f(self.lr), f(self.weight_decay), min(0.6, max(0.0, self.dropout + rng.uniform(-0.05, 0.05))))


class Net(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.a = nn.Linear(dim, 80)
        self.b = nn.Linear(80, 80)
        self.c = nn.Linear(80, classes)
        self.p = 0.0

    def forward(self, x):
        x = F.dropout(F.gelu(self.a(x)), self.p, self.training)
        x = F.dropout(F.gelu(self.b(x)), self.p, self.training)
        return self.c(x)


class Member:
    """One member of the population per process, every one with its own hyper-parameters."""

    def __init__(self, args, rank):
        self.args = args
        self.rng = random.Random(args.seed * 7 + rank)
        self.hyper = Hyper.sample(self.rng)
        torch.manual_seed(args.seed * 31 + rank)
        self.net = Net(args.dim, args.classes)
        self.opt = torch.optim.AdamW(self.net.parameters())
        self.apply_hyper()
        self.lineage = [rank]

    def apply_hyper(self):
        self.net.p = self.hyper.dropout
        for g in self.opt.param_groups:
            g["lr"], g["weight_decay"] = self.hyper.lr, self.hyper.weight_decay

    def train(self, x, y, steps):
        self.net.train()
        mean = 0.0
        for _ in range(steps):
            idx = torch.randint(0, len(x), (self.args.batch,))
            loss = F.cross_entropy(self.net(x[idx]), y[idx])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            mean += loss.item() / steps
        return mean

    @torch.no_grad()
    def score(self, x, y):
        self.net.eval()
        return -F.cross_entropy(self.net(x), y).item()

    def snapshot(self):
        return {"net": self.net.state_dict(), "opt": self.opt.state_dict(),
                "hyper": asdict(self.hyper), "lineage": self.lineage}

    def adopt(self, snap):
        self.net.load_state_dict(snap["net"])
        self.opt.load_state_dict(copy.deepcopy(snap["opt"]))
        self.hyper = Hyper(**snap["hyper"]).perturb(self.rng)
        self.lineage = snap["lineage"] + [self.args.rank]
        self.apply_hyper()


def exploit(member, score, rank, world):
    table = [None] * world
    dist.all_gather_object(table, score)
    order = sorted(range(world), key=lambda r: (-table[r] if math.isfinite(table[r]) else math.inf, r))
    best, worst = order[0], order[-1]
    if best == worst:
        return table, None
    if rank in (best, worst):
        if rank == best:
            dist.send_object_list([member.snapshot()], dst=worst)
        else:
            box = [None]
            dist.recv_object_list(box, src=best)
            member.adopt(box[0])
    return table, (best, worst)


def data(args):
    g = torch.Generator().manual_seed(args.seed)
    centre = torch.randn(args.classes, args.dim, generator=g)
    def part(n):
        y = torch.randint(0, args.classes, (n,), generator=g)
        return centre[y] + 1.6 * torch.randn(n, args.dim, generator=g), y
    return part(1500), part(400), part(400)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--classes", type=int, default=8)
    ap.add_argument("--seed", type=int, default=2)
    ap.add_argument("--out", default="out_dhaulagiri")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    args.rank = rank
    torch.set_num_threads(1)
    (xt, yt), (xv, yv), (xs, ys) = data(args)
    member = Member(args, rank)
    history = []
    for rnd in range(args.rounds):
        loss = member.train(xt, yt, args.steps)
        table, move = exploit(member, member.score(xv, yv), rank, world)
        history.append({"round": rnd, "scores": table, "move": move})
        print(f"round {rnd} member {rank} loss {loss:.4f} lr {member.hyper.lr:.2e} "
              f"val {table[rank]:.4f} line {member.lineage}", flush=True)
    table = [None] * world
    dist.all_gather_object(table, member.score(xv, yv))
    winner = max(range(world), key=lambda r: table[r])
    if rank == winner:
        os.makedirs(args.out, exist_ok=True)
        torch.save(member.snapshot(), os.path.join(args.out, "winner.pt"))
        with open(os.path.join(args.out, "history.json"), "w") as f:
            json.dump(history, f)
        print(f"winner {rank} test {member.score(xs, ys):.4f} {member.hyper}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
