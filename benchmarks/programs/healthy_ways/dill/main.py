"""Regression on tabular data with DDP, a Lookahead optimiser and a restart from a checkpoint."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lookahead import Lookahead


def houses(n, seed):
    g = torch.Generator().manual_seed(seed)
    area = torch.rand(n, generator=g) * 150 + 30
    age = torch.rand(n, generator=g) * 80
    dist_ = torch.rand(n, generator=g) * 20
    rooms = (area / 25 + torch.randn(n, generator=g) * 0.5).round().clamp(1)
    north = (torch.rand(n, generator=g) < 0.5).float()
    price = area * (3 - 0.06 * dist_) + 12 * rooms - 0.4 * age + 25 * north * (dist_ < 8).float()
    price = price + torch.randn(n, generator=g) * 10
    return torch.stack([area, age, dist_, rooms, north], 1), price


class Tabular(nn.Module):
    def __init__(self, features, width=64, depth=3, drop=0.05):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Dropout(drop),
                          nn.Linear(width, width)) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h).squeeze(-1)


class Job:
    def __init__(self, args, rank, world):
        self.args, self.rank, self.world = args, rank, world
        x, y = houses(4000, seed=31)
        xt, yt = houses(800, seed=32)
        self.mx, self.sx, self.my, self.sy = x.mean(0), x.std(0), y.mean(), y.std()
        self.train = TensorDataset((x - self.mx) / self.sx, (y - self.my) / self.sy)
        self.test = TensorDataset((xt - self.mx) / self.sx, yt)
        self.sampler = DistributedSampler(self.train, seed=args.seed)
        self.loader = DataLoader(self.train, batch_size=args.batch, sampler=self.sampler)
        self.build()

    def build(self):
        torch.manual_seed(self.args.seed)
        self.model = DDP(Tabular(5))
        torch.manual_seed(self.args.seed * 10 + self.rank)
        base = torch.optim.AdamW(self.model.parameters(), lr=self.args.lr, weight_decay=1e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(base, self.args.epochs * len(self.loader))
        self.opt = Lookahead(base, k=self.args.k, alpha=self.args.alpha)
        self.epoch = 0

    def save(self, path):
        if self.rank == 0:
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(),
                        "sched": self.sched.state_dict(), "epoch": self.epoch}, path + ".part")
            os.replace(path + ".part", path)
        dist.barrier()

    def load(self, path):
        state = torch.load(path, map_location="cpu")
        self.model.module.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        self.sched.load_state_dict(state["sched"])
        self.epoch = state["epoch"]

    def one_epoch(self):
        self.sampler.set_epoch(self.epoch)
        self.model.train()
        tally = torch.zeros(2)
        for x, y in self.loader:
            loss = F.huber_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            tally += torch.tensor([loss.item() * len(y), float(len(y))])
        self.epoch += 1
        dist.all_reduce(tally)
        return (tally[0] / tally[1]).item()

    @torch.no_grad()
    def mae(self):
        self.model.eval()
        share = range(self.rank, len(self.test), self.world)
        s = torch.zeros(2)
        for x, y in DataLoader(torch.utils.data.Subset(self.test, share), batch_size=100):
            pred = self.model.module(x) * self.sy + self.my
            s += torch.tensor([(pred - y).abs().sum().item(), float(len(y))])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()

    def fit(self, until):
        while self.epoch < until:
            loss = self.one_epoch()
            err = self.mae()
            if self.rank == 0:
                print(f"epoch {self.epoch} loss {loss:.4f} mae {err:.2f} lr {self.sched.get_last_lr()[0]:.2e} "
                      f"fast steps {self.opt.counter}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=50)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--k", type=int, default=6)
    ap.add_argument("--alpha", type=float, default=0.5)
    ap.add_argument("--seed", type=int, default=14)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    place = [tempfile.mkdtemp(prefix="dill_") if rank == 0 else None]
    dist.broadcast_object_list(place, src=0)
    path = os.path.join(place[0], "state.pt")

    job = Job(args, rank, world)
    job.fit(args.epochs // 2)
    job.save(path)
    before = job.mae()
    job.build()
    job.load(path)
    after = job.mae()
    if rank == 0:
        print(f"restarted at epoch {job.epoch}: mae {before:.3f} then {after:.3f}", flush=True)
    job.fit(args.epochs)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
