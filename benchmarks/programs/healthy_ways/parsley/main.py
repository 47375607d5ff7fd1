"""Curriculum: small pictures and small batches first, easy examples first, then everything."""
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from data import Textures


@dataclass(frozen=True)
class Phase:
    epochs: int
    size: int
    batch: int
    easiest: float


PLAN = (Phase(2, 8, 16, 0.5), Phase(2, 12, 32, 0.75), Phase(2, 16, 64, 1.0))


class ConvNet(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, ch, 3, padding=1), nn.GroupNorm(4, ch), nn.ReLU(),
                                  nn.Conv2d(ch, 2 * ch, 3, padding=1, stride=2), nn.GroupNorm(4, 2 * ch), nn.ReLU(),
                                  nn.Conv2d(2 * ch, 2 * ch, 3, padding=1), nn.GroupNorm(4, 2 * ch), nn.ReLU())
        self.head = nn.Linear(2 * ch, 4)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Curriculum:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.train, self.held = Textures(1920, 1), Textures(400, 2)
        self.ranking = self.train.difficulty().argsort()
        torch.manual_seed(args.seed)
        self.model = DDP(ConvNet())
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        self.epoch = 0
        self.log = []

    def loader(self, phase):
        self.train.resize(phase.size)
        keep = int(len(self.train) * phase.easiest)
        subset = Subset(self.train, self.ranking[:keep].tolist())
        sampler = DistributedSampler(subset, seed=self.args.seed)
        return DataLoader(subset, batch_size=phase.batch, sampler=sampler), sampler

    def rate(self, phase, progress):
        scale = (phase.batch / PLAN[0].batch) ** 0.5
        return self.args.lr * scale * (1.0 if progress < 0.75 else 4 * (1 - progress))

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        mine = Subset(self.held, range(self.rank, len(self.held), self.world))
        s = torch.zeros(2)
        for x, y in DataLoader(mine, batch_size=100):
            s += torch.tensor([(self.model.module(x).argmax(1) == y).sum().item(), float(len(y))])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()

    def run(self):
        total = sum(p.epochs for p in PLAN)
        for number, phase in enumerate(PLAN):
            loader, sampler = self.loader(phase)
            self.held.resize(phase.size)
            for _ in range(phase.epochs):
                sampler.set_epoch(self.epoch)
                self.model.train()
                tally = torch.zeros(2)
                for i, (x, y) in enumerate(loader):
                    progress = (self.epoch + i / len(loader)) / total
                    self.opt.param_groups[0]["lr"] = self.rate(phase, progress)
                    loss = F.cross_entropy(self.model(x), y)
                    self.opt.zero_grad(set_to_none=True)
                    loss.backward()
                    self.opt.step()
                    tally += torch.tensor([loss.item() * len(y), float(len(y))])
                dist.all_reduce(tally)
                acc = self.evaluate()
                self.epoch += 1
                if self.rank == 0:
                    print(f"phase {number} size {phase.size} batch {phase.batch} epoch {self.epoch} steps {len(loader)} "
                          f"loss {(tally[0] / tally[1]).item():.4f} accuracy {acc:.3f}", flush=True)
            self.save(number)

    def save(self, number):
        if self.rank == 0:
            os.makedirs("runs/parsley", exist_ok=True)
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(), "epoch": self.epoch},
                       f"runs/parsley/phase{number}.pt")
        dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.04)
    ap.add_argument("--seed", type=int, default=18)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    Curriculum(args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
