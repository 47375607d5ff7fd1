"""Population-based training: one member per rank; weak members copy strong ones and perturb their settings."""
import argparse
import io
import json
import os
import random
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Hyper:
    lr: float
    weight_decay: float
    dropout: float
    noise: float

    @classmethod
    def sample(cls, r):
        return cls(10 ** r.uniform(-3.3, -1.7), 10 ** r.uniform(-4, -1.5), r.uniform(0, 0.4), r.uniform(0, 0.4))

    def perturb(self, r):
        f = lambda: r.choice([0.8, 1.25])
        return Hyper(self.lr * f(), self.weight_decay * f(), min(0.6, self.dropout * f()), min(0.6, self.noise * f()))


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    radius = 0.5 + y.float() * 0.5 + 0.16 * torch.randn(n, generator=g)
    d = F.normalize(torch.randn(n, 5, generator=g), dim=1)
    return TensorDataset(d * radius[:, None], y)


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.rate = 0.0

    def forward(self, x):
        h = F.dropout(F.relu(self.a(x)), self.rate, self.training)
        return self.c(F.dropout(F.relu(self.b(h)), self.rate, self.training))


class Member:
    def __init__(self, args, rank):
        self.rank, self.args = rank, args
        self.r = random.Random(args.seed * 100 + rank)
        torch.manual_seed(args.seed * 1000 + rank)
        self.net = Net()
        self.opt = torch.optim.AdamW(self.net.parameters())
        self.data = rings(1500, 1)
        gen = torch.Generator().manual_seed(args.seed * 10 + rank)
        self.loader = DataLoader(self.data, batch_size=args.batch, shuffle=True, generator=gen)
        self.valid = rings(500, 2)
        self.adopt(Hyper.sample(self.r))
        self.lineage = [rank]

    def adopt(self, hyper):
        self.hyper = hyper
        self.net.rate = hyper.dropout
        for g in self.opt.param_groups:
            g["lr"], g["weight_decay"] = hyper.lr, hyper.weight_decay

    def train(self, epochs):
        self.net.train()
        total, n = 0.0, 0
        for _ in range(epochs):
            for x, y in self.loader:
                x = x + self.hyper.noise * 0.3 * torch.randn_like(x)
                loss = F.cross_entropy(self.net(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                total, n = total + loss.item() * len(y), n + len(y)
        return total / n

    @torch.no_grad()
    def score(self, data):
        self.net.eval()
        x, y = data.tensors
        return (self.net(x).argmax(1) == y).float().mean().item()

    def pack(self):
        buf = io.BytesIO()
        torch.save({"net": self.net.state_dict(), "opt": self.opt.state_dict()}, buf)
        return {"blob": buf.getvalue(), "hyper": asdict(self.hyper), "lineage": self.lineage}

    def unpack(self, pack):
        state = torch.load(io.BytesIO(pack["blob"]))
        self.net.load_state_dict(state["net"])
        self.opt.load_state_dict(state["opt"])
        self.lineage = pack["lineage"] + [self.rank]
        self.adopt(Hyper(**pack["hyper"]).perturb(self.r))


def exploit(member, scores, rank):
    """The worst member takes over the best; only those two ranks move any data."""
    best = max(range(len(scores)), key=lambda i: (scores[i], -i))
    worst = min(range(len(scores)), key=lambda i: (scores[i], -i))
    if scores[best] - scores[worst] < 0.01 or best == worst:
        return None
    if rank == best:
        dist.send_object_list([member.pack()], dst=worst)
    elif rank == worst:
        box = [None]
        dist.recv_object_list(box, src=best)
        member.unpack(box[0])
    return best, worst


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=5)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=30)
    ap.add_argument("--seed", type=int, default=82)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member = Member(args, rank)
    story = []
    for gen in range(args.generations):
        loss = member.train(args.epochs)
        acc = member.score(member.valid)
        rows = [None] * world
        dist.all_gather_object(rows, {"loss": loss, "accuracy": acc, **asdict(member.hyper), "lineage": member.lineage})
        moved = exploit(member, [r["accuracy"] for r in rows], rank) if gen < args.generations - 1 else None
        story.append({"generation": gen, "members": rows, "moved": moved})
        if rank == 0:
            print(f"generation {gen} accuracy {[round(r['accuracy'], 3) for r in rows]} "
                  f"lr {[round(r['lr'], 5) for r in rows]} moved {moved}", flush=True)
    champion = max(range(world), key=lambda i: (story[-1]["members"][i]["accuracy"], -i))
    if rank == champion:
        test = member.score(rings(1000, 3))
        os.makedirs("runs/bay", exist_ok=True)
        torch.save(member.net.state_dict(), "runs/bay/champion.pt")
        print(f"champion rank {rank} lineage {member.lineage} test accuracy {test:.3f}", flush=True)
    if rank == 0:
        os.makedirs("runs/bay", exist_ok=True)
        with open("runs/bay/story.json", "w") as f:
            json.dump(story, f, indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
