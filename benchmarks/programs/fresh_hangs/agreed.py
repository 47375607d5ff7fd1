"""Stops when the common validation loss no longer falls; rank 0 decides when outputs are collected."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 7, generator=gen)
    return TensorDataset(x, (x[:, :1] - x[:, 1:2]) + 0.5 * torch.randn(count, 1, generator=gen))


@torch.no_grad()
def validate(net, loader):
    totals = torch.zeros(2, dtype=torch.float64)
    outputs = []
    for x, y in loader:
        out = net(x)
        outputs.append(out)
        totals += torch.tensor([((out - y) ** 2).sum().item(), len(x)], dtype=torch.float64)
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item(), torch.cat(outputs)


class Secretary:
    """Only rank 0 keeps the history; the others are told what to do."""

    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def decide(self, loss):
        order = [None]
        if dist.get_rank() == 0:
            better = loss < self.best - 1e-3
            self.bad = 0 if better else self.bad + 1
            self.best = min(loss, self.best)
            order[0] = {"collect": better, "stop": self.bad >= self.patience}
        dist.broadcast_object_list(order, src=0)
        return order[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--patience", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, valid = make(192, 1), make(96, 2)
    sampler = DistributedSampler(train, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    valid_loader = DataLoader(valid, batch_size=16, sampler=DistributedSampler(valid, shuffle=False))
    net = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1))
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    secretary = Secretary(args.patience)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            time.sleep(0.25)
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        value, outputs = validate(net, valid_loader)
        order = secretary.decide(value)
        if order["collect"]:
            parts = [torch.empty_like(outputs) for _ in range(world)] if rank == 0 else None
            dist.gather(outputs, parts, dst=0)
            if rank == 0:
                print(f"epoch {epoch} valid {value:.4f} mean {torch.cat(parts).mean():.3f}", flush=True)
        if order["stop"]:
            break
    if rank == 0:
        print(f"stopped after epoch {epoch}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
