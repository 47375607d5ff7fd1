"""Rank 0 decides, in a branch of its own, when to stop; the others listen."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Patience:
    def __init__(self, limit):
        self.limit, self.best, self.stale = limit, float("inf"), 0

    def __call__(self, value):
        if value < self.best - 1e-3:
            self.best, self.stale = value, 0
        else:
            self.stale += 1
        return self.stale >= self.limit


class Chair:
    """Evaluates on rank 0 and announces what to do."""

    def __init__(self, model, patience):
        self.model, self.patience = model, patience
        self.gen = torch.Generator().manual_seed(99)

    @torch.no_grad()
    def evaluate(self):
        time.sleep(0.3)
        x = torch.randn(128, 5, generator=self.gen)
        return (self.model.module(x) - x.relu()).square().mean().item()

    def decide(self, epoch):
        if dist.get_rank() == 0:
            try:
                value = self.evaluate()
                order = {"stop": self.patience(value), "value": value, "lr": 0.05 * 0.9**epoch}
            except ArithmeticError as exc:
                order = {"stop": True, "value": str(exc), "lr": 0.0}
            dist.broadcast_object_list([order], src=0)
        else:
            inbox = [None]
            dist.broadcast_object_list(inbox, src=0)
            order = inbox[0]
        return order


def epoch_of(model, opt, rank, epoch, steps):
    for step in range(steps):
        gen = torch.Generator().manual_seed(1000 * epoch + 10 * step + rank)
        x = torch.randn(16, 5, generator=gen)
        opt.zero_grad()
        (model(x) - x.relu()).square().mean().backward()
        opt.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 5)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    chair = Chair(model, Patience(3))
    for epoch in range(args.epochs):
        epoch_of(model, opt, rank, epoch, args.steps)
        order = chair.decide(epoch)
        for group in opt.param_groups:
            group["lr"] = order["lr"]
        if order["stop"]:
            break
    if rank == 0:
        print(f"stopped at epoch {epoch}, value {order['value']:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
