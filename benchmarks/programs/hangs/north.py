"""1F1B over four stages of unequal cost with torch.distributed.pipelining."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Slow(nn.Module):
    """A layer that takes its time, as an offloaded one would."""

    def __init__(self, inner, seconds):
        super().__init__()
        self.inner, self.seconds = inner, seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.inner(x)


def build(rank, world, width, classes):
    torch.manual_seed(10 + rank)
    if rank == world - 1:
        return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, classes))
    layer = nn.Sequential(nn.Linear(width, width), nn.Tanh())
    return Slow(layer, 0.02) if rank == 2 else layer


class Runner:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.module = build(self.rank, self.world, args.width, args.classes)
        stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, args.chunks, loss_fn=nn.functional.cross_entropy)
        self.opt = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def batch(self, step):
        gen = torch.Generator().manual_seed(step)
        x = torch.randn(self.args.batch_size, self.args.width, generator=gen)
        return x, x[:, : self.args.classes].argmax(dim=1)

    def step(self, number):
        x, y = self.batch(number)
        self.opt.zero_grad()
        losses = []
        if self.rank == 0:
            self.schedule.step(x)
        elif self.rank == self.world - 1:
            self.schedule.step(target=y, losses=losses)
        else:
            self.schedule.step()
        self.opt.step()
        return torch.stack(losses).mean().item() if losses else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo")
    runner = Runner(args)
    for number in range(args.steps):
        loss = runner.step(number)
        if loss is not None and number % 4 == 0:
            print(f"step {number} loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
