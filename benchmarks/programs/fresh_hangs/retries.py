"""Reads from a flaky store; a step is tried again by all ranks when one of them could not read."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS = 24


class FlakyStore:
    def __init__(self, rank):
        self.rank, self.tries = rank, {}

    def read(self, step):
        time.sleep(0.25)
        attempt = self.tries[step] = self.tries.get(step, 0) + 1
        if step % 9 == 4 and self.rank == (step // 9) % 2 and attempt < 3:
            raise ConnectionError(f"shard {step}: reset by peer")
        gen = torch.Generator().manual_seed(step * 2 + self.rank)
        return torch.randn(ROWS, 8, generator=gen)


def everybody(ok):
    flag = torch.tensor([int(ok)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


def read_together(store, step, limit=5):
    for attempt in range(limit):
        rows = None
        try:
            rows = store.read(step)
        except ConnectionError as error:
            print(f"[{store.rank}] {error}, attempt {attempt}", flush=True)
        if everybody(rows is not None):
            return rows
        time.sleep(0.3)
    raise RuntimeError(f"step {step} could not be read")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    store = FlakyStore(rank)
    for step in range(args.steps):
        rows = read_together(store, step)
        loss = ((model(rows) - rows[:, :2].cumsum(1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 8 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
