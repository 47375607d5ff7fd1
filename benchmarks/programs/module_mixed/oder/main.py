import os
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from pipeline import JsonlPipeline, warn_and_continue

HERE = os.path.dirname(os.path.abspath(__file__))
EPOCHS, BATCH = 3, 10


class Adder(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(100, d)
        self.net = nn.Sequential(nn.Linear(3 * d, 96), nn.ReLU(), nn.Linear(96, 100))

    def forward(self, ids):
        return self.net(self.emb(ids).flatten(1))


class Meter:
    def __init__(self):
        self.total = torch.zeros(2)

    def add(self, loss, n):
        self.total += torch.tensor([loss * n, float(n)])

    def reduce(self):
        dist.all_reduce(self.total)
        return (self.total[0] / self.total[1]).item()


def train_epoch(model, opt, loader):
    meter = Meter()
    for ids, target in loader:
        loss = F.cross_entropy(model(ids), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.add(loss.item(), len(ids))
    dist.barrier()
    return meter.reduce()


def main():
    warnings.simplefilter("once")
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    ds = JsonlPipeline(os.path.join(HERE, "data"), rank, world, BATCH, handler=warn_and_continue)
    loader = DataLoader(ds, batch_size=None)
    model = DDP(Adder())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        mean = train_epoch(model, opt, loader)
        if rank == 0:
            print(f"epoch {epoch} loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
