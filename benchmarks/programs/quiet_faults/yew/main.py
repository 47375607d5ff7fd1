"""Regression on measuring sites; ranks hold unequal numbers of rows."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from data import held_out, partition


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()]
    layers.append(nn.Linear(sizes[-2], sizes[-1]))
    return nn.Sequential(*layers)


def batches(x, y, size, generator):
    order = torch.randperm(len(x), generator=generator)
    for pick in order.split(size):
        yield x[pick], y[pick]


class Averager:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value, n):
        self.total += value * n
        self.count += n

    def reduced(self):
        t = torch.tensor([self.total, float(self.count)], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item()


def train_epoch(model, optimizer, data, batch_size, generator):
    meter = Averager()
    loss_fn = nn.MSELoss()
    with Join([model]):
        for x, y in batches(*data, batch_size, generator):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            meter.add(loss.item(), len(x))
    return meter.reduced()


@torch.no_grad()
def validate(net, rank, world):
    x, y = held_out(rank, world)
    meter = Averager()
    meter.add((net(x) - y).pow(2).mean().item(), len(x))
    return meter.reduced()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=20)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--momentum", type=float, default=0.9)
    ap.add_argument("--out", default="runs")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    net = mlp([12, 64, 64, 3])
    model = DDP(net)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=args.lr, momentum=args.momentum, nesterov=True, weight_decay=1e-4
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
    data = partition(rank, world)
    generator = torch.Generator().manual_seed(500 + rank)
    best = float("inf")
    for epoch in range(args.epochs):
        loss = train_epoch(model, optimizer, data, args.batch_size, generator)
        scheduler.step()
        val = validate(net, rank, world)
        if rank == 0:
            print(f"epoch {epoch} train {loss:.4f} val {val:.4f} lr {scheduler.get_last_lr()[0]:.4f}", flush=True)
            if val < best:
                os.makedirs(args.out, exist_ok=True)
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                           os.path.join(args.out, "sites.pt"))
        best = min(best, val)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
