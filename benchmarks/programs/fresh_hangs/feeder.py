"""Rank 0 reads the data for everybody; the next batch travels while the present one is used."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS, WIDTH = 32, 16


class Feeder:
    def __init__(self, steps, group):
        self.steps, self.group = steps, group
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def read(self, step):
        if self.rank == 0:
            time.sleep(0.2)
            gen = torch.Generator().manual_seed(step)
            return torch.randn(ROWS * self.world, WIDTH, generator=gen)
        return torch.empty(ROWS * self.world, WIDTH)

    def issue(self, step):
        buffer = self.read(step)
        return buffer, dist.broadcast(buffer, src=0, group=self.group, async_op=True)

    def __iter__(self):
        ahead = self.issue(0)
        for step in range(self.steps):
            buffer, work = ahead
            if step + 1 < self.steps:
                ahead = self.issue(step + 1)
            work.wait()
            yield buffer[self.rank :: self.world]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    data_group = dist.new_group()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, rows in enumerate(Feeder(args.steps, data_group)):
        time.sleep(0.1)
        loss = ((model(rows) - rows.flip(1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
