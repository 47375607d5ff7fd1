"""Uneven streams per rank, trained under the Join context manager."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Shard(IterableDataset):
    """Reads the files of one rank; files differ in length."""

    def __init__(self, rank, world, files=7):
        self.files = list(range(files))[rank::world]

    def __iter__(self):
        for f in self.files:
            g = torch.Generator().manual_seed(700 + f)
            for _ in range(60 + 17 * f):
                x = torch.randn(14, generator=g)
                yield x, (x[:4].sum() > x[4:8].sum()).long()


class Meter:
    def __init__(self):
        self.n = 0
        self.loss = 0.0

    def add(self, loss, n):
        self.loss += loss * n
        self.n += n

    def reduce(self):
        t = torch.tensor([self.loss, float(self.n)], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item(), int(t[1])


def train_epoch(model, opt, loader):
    meter, steps = Meter(), 0
    with Join([model]):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            meter.add(loss.item(), len(y))
            steps += 1
    return meter, steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Shard(rank, world), batch_size=args.batch_size)
    for epoch in range(args.epochs):
        meter, steps = train_epoch(model, opt, loader)
        loss, n = meter.reduce()
        counts = [None] * world
        dist.all_gather_object(counts, steps)
        if rank == 0:
            print(f"epoch {epoch} samples {n} steps {counts} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
