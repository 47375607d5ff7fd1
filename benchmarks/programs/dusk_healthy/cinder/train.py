"""Population based training: one member of the population per process.

Members have their own hyperparameters, weights and data order. After each interval the worst
member copies the best one (exploit) and perturbs what it copied (explore).
"""
import argparse
import json
import os
import random
import tempfile
import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class HParams:
    lr: float
    weight_decay: float
    dropout: float
    batch_size: int

    def perturb(self, rng):
        return HParams(self.lr * rng.choice([0.8, 1.25]), self.weight_decay * rng.choice([0.5, 2.0]),
                       min(0.6, max(0.0, self.dropout + rng.uniform(-0.1, 0.1))),
                       rng.choice([b for b in (32, 48, 64, 96) if b != self.batch_size]))


class Member:
    def __init__(self, rank, hp, data):
        self.rank, self.hp = rank, hp
        torch.manual_seed(rank)                    # a population should not start at one point
        self.drop = nn.Dropout(hp.dropout)
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), self.drop, nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 20))
        self.x, self.y = data
        self.gen = torch.Generator().manual_seed(rank)
        self.make_optimizer()

    def make_optimizer(self, state=None):
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=self.hp.lr, weight_decay=self.hp.weight_decay)
        if state is not None:
            self.opt.load_state_dict(state)
            for g in self.opt.param_groups:
                g["lr"], g["weight_decay"] = self.hp.lr, self.hp.weight_decay
        self.drop.p = self.hp.dropout

    def train_interval(self, steps):
        self.net.train()
        total = 0.0
        for _ in range(steps):
            idx = torch.randint(len(self.x), (self.hp.batch_size,), generator=self.gen)
            loss = F.cross_entropy(self.net(self.x[idx]), self.y[idx])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / steps

    @torch.no_grad()
    def score(self, x, y):
        self.net.eval()
        return -F.cross_entropy(self.net(x), y).item()

    def payload(self):
        return {"hp": asdict(self.hp), "net": self.net.state_dict(), "opt": self.opt.state_dict()}

    def adopt(self, payload, rng):
        self.hp = HParams(**payload["hp"]).perturb(rng)
        self.net.load_state_dict(payload["net"])
        self.make_optimizer(payload["opt"])


def toy(n, seed):
    g = torch.Generator().manual_seed(3)
    w1, w2 = torch.randn(128, 40, generator=g), torch.randn(40, 20, generator=g)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 128, generator=g)
    return x, (torch.tanh(x @ w1 / 8) @ w2 + 0.3 * torch.randn(n, 20, generator=g)).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--intervals", type=int, default=10)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rng = random.Random(rank)
    hp = HParams(10 ** rng.uniform(-4, -2.3), 10 ** rng.uniform(-4, -1), rng.uniform(0, 0.5), rng.choice([32, 48, 64, 96]))
    member, (vx, vy) = Member(rank, hp, toy(4000, 1)), toy(800, 2)
    lineage = []
    for it in range(args.intervals):
        t0 = time.time()
        loss = member.train_interval(args.steps)
        scores = [None] * world
        dist.all_gather_object(scores, member.score(vx, vy))
        best, worst = max(range(world), key=scores.__getitem__), min(range(world), key=scores.__getitem__)
        print(f"member {rank} interval {it} loss {loss:.3f} score {scores[rank]:.4f} lr {member.hp.lr:.2e} "
              f"bs {member.hp.batch_size} ({time.time() - t0:.1f}s)", flush=True)
        if it == args.intervals - 1:
            break
        # only the two concerned members talk; the others go on training
        if rank == best and best != worst:
            dist.send_object_list([member.payload()], dst=worst)
        elif rank == worst and best != worst:
            box = [None]
            dist.recv_object_list(box, src=best)
            member.adopt(box[0], rng)
            lineage.append((it, best))
    records = [None] * world
    dist.all_gather_object(records, {"hp": asdict(member.hp), "score": scores[rank], "lineage": lineage})
    winner = max(range(world), key=lambda r: records[r]["score"])
    if rank == winner:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(member.net.state_dict(), os.path.join(out, "winner.pt"))
        print("winner", rank, json.dumps(records[winner]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
