"""Local SGD: ranks do different numbers of local steps between averages."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class Speedometer:
    """Steps that fit into a slice of time on this rank."""

    def __init__(self, rank, seconds):
        self.rank, self.seconds = rank, seconds

    def rounds(self):
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            yield
            time.sleep(0.004 * (1 + 2 * self.rank))


class LocalSGD:
    def __init__(self, model, lr, outer_lr=0.7, momentum=0.6):
        self.model = model
        self.inner = torch.optim.AdamW(model.parameters(), lr=lr)
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.outer = torch.optim.SGD(self.anchor, lr=outer_lr, momentum=momentum, nesterov=True)
        self.steps = 0

    def local(self, x):
        self.inner.zero_grad()
        loss = (self.model(x) - x.sin()).square().mean()
        loss.backward()
        self.inner.step()
        self.steps += 1
        return loss.item()

    def synchronise(self):
        weight = torch.tensor([float(self.steps)])
        dist.all_reduce(weight)
        for anchor, p in zip(self.anchor, self.model.parameters()):
            delta = (anchor - p.detach()) * (self.steps / weight)
            dist.all_reduce(delta)
            anchor.grad = delta
        self.outer.step()
        for anchor, p in zip(self.anchor, self.model.parameters()):
            p.data.copy_(anchor)
        done, self.steps = self.steps, 0
        return done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--outer", type=int, default=10)
    parser.add_argument("--slice", type=float, default=0.25)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    trainer = LocalSGD(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)), 2e-3)
    gen = torch.Generator().manual_seed(rank)
    meter = Speedometer(rank, args.slice)
    counts = []
    for _ in range(args.outer):
        for _ in meter.rounds():
            trainer.local(torch.randn(16, 4, generator=gen) * 2)
        counts.append(trainer.synchronise())
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, sum(counts))
    if rank == 0:
        print(f"local steps per rank {everyone}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
