"""Training on regional shards of unequal size with the Join context.

Every record is used exactly once an epoch; processes that run out of data keep
shadowing the collectives of the others.
"""
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

REGION_SIZES = (704, 512, 608)


@dataclass
class Args:
    epochs: int = 4
    batch: int = 32
    lr: float = 0.3
    seed: int = 12
    out: str = "runs/zante"


def region(index, size, seed):
    rule = torch.Generator().manual_seed(1)
    w1 = torch.randn(16, 24, generator=rule) / 4
    w2 = torch.randn(24, 5, generator=rule)
    g = torch.Generator().manual_seed(seed + index)
    x = torch.randn(size, 16, generator=g) + 0.25 * index
    y = (torch.relu(x @ w1) @ w2 + 0.2 * torch.randn(size, 5, generator=g)).argmax(1)
    return TensorDataset(x, y)


class Tower(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.norm = nn.LayerNorm(width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 5)

    def forward(self, x):
        h = F.relu(self.norm(self.inp(x)))
        return self.out(h + F.relu(self.mid(h)))


class Job:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(Tower())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, milestones=[2, 3], gamma=0.4)
        self.shuffle = torch.Generator().manual_seed(args.seed + self.rank)
        shard = region(self.rank, REGION_SIZES[self.rank % len(REGION_SIZES)], seed=10)
        self.loader = DataLoader(shard, batch_size=args.batch, shuffle=True, generator=self.shuffle)
        self.held_out = region(self.rank, 100 + 20 * self.rank, seed=500)

    def epoch(self):
        self.model.train()
        sums = torch.zeros(3, dtype=torch.float64)
        with Join([self.model], divide_by_initial_world_size=False):
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                sums += torch.tensor([loss.item() * len(y), len(y), 1.0], dtype=torch.float64)
        self.schedule.step()
        return sums

    @torch.no_grad()
    def test(self):
        self.model.eval()
        x, y = self.held_out.tensors
        pair = torch.tensor([(self.model.module(x).argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(pair)
        return pair[0].item() / pair[1].item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Args.epochs)
    ap.add_argument("--lr", type=float, default=Args.lr)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    job = Job(Args(epochs=ns.epochs, lr=ns.lr))
    for e in range(ns.epochs):
        sums = job.epoch()
        own_batches = int(sums[2])
        dist.all_reduce(sums)
        accuracy = job.test()
        if job.rank == 0:
            print(f"epoch {e} loss {sums[0] / sums[1]:.4f} records {int(sums[1])} own batches {own_batches} "
                  f"accuracy {accuracy:.4f}", flush=True)
    if job.rank == 0:
        os.makedirs(job.args.out, exist_ok=True)
        torch.save(job.model.module.state_dict(), os.path.join(job.args.out, "tower.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
