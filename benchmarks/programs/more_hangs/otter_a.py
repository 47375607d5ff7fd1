"""Load expert weight blocks per rank, check that everybody is ready, then serve a few batches."""
import argparse
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class LoadPlan:
    blocks_per_rank: tuple = (4, 26, 5)
    seconds_per_block: float = 0.25
    ready_within: float = 2.5
    width: int = 32


class BlockStore:
    def __init__(self, plan, rank):
        self.plan = plan
        self.rank = rank

    def read(self, k):
        time.sleep(self.plan.seconds_per_block)
        g = torch.Generator().manual_seed(1000 * self.rank + k)
        return torch.randn(self.plan.width, self.plan.width, generator=g) / self.plan.width ** 0.5


class Stack(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(b, requires_grad=False) for b in blocks])

    def forward(self, x):
        for w in self.weights:
            x = torch.tanh(x @ w)
        return x


def load_stack(plan, rank):
    source = BlockStore(plan, rank)
    count = plan.blocks_per_rank[rank % len(plan.blocks_per_rank)]
    return Stack([source.read(k) for k in range(count)])


def announce_ready(plan):
    dist.monitored_barrier(timeout=timedelta(seconds=plan.ready_within), wait_all_ranks=True)


@torch.no_grad()
def serve(stack, plan, batches):
    checksum = torch.zeros(1)
    for b in range(batches):
        x = torch.full((8, plan.width), 0.01 * (b + 1))
        y = stack(x)
        dist.all_reduce(y)
        checksum += y.sum()
    return checksum.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batches", type=int, default=5)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    plan = LoadPlan()
    t = time.monotonic()
    stack = load_stack(plan, rank)
    print(f"rank {rank}: {len(stack.weights)} blocks in {time.monotonic() - t:.1f}s", flush=True)
    announce_ready(plan)
    value = serve(stack, plan, a.batches)
    if rank == 0:
        print("checksum", round(value, 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
