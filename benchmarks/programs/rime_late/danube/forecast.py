"""Forecast the evening of a household day from its first 72 quarter hours."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feeder import ShardFeeder
from shards import DAY, export

KNOWN = 72


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(KNOWN, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.head = nn.Linear(hidden, DAY - KNOWN)

    def forward(self, x):
        return self.head(self.body(x))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))
    p.add_argument("--shards", type=int, default=10)
    p.add_argument("--days", type=int, default=656)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--hidden", type=int, default=256)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    paths = export(args.data, rank, args.shards, args.days, seed=20)
    dist.barrier()
    torch.manual_seed(2)
    model = DistributedDataParallel(Forecaster(args.hidden))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    feeder = ShardFeeder(paths, args.batch, seed=100 + rank)
    for epoch in range(args.epochs):
        losses = []
        for block in feeder:
            loss = nn.functional.l1_loss(model(block[:, :KNOWN]), block[:, KNOWN:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: mean abs error {mean.item() / world:.4f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.data, "forecaster.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
