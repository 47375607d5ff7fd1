"""Ranks pull work from a shared counter in the store and meet at the end."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class WorkQueue:
    """Hands out item numbers first come, first served."""

    def __init__(self, store, name, total):
        self.store, self.name, self.total = store, name, total

    def __iter__(self):
        while (number := self.store.add(f"{self.name}/next", 1) - 1) < self.total:
            yield number
        self.store.add(f"{self.name}/gone", 1)

    def wait(self, world, pause=0.1):
        while self.store.add(f"{self.name}/gone", 0) < world:
            time.sleep(pause)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    @torch.no_grad()
    def score(self, number):
        gen = torch.Generator().manual_seed(number)
        return self.net(torch.randn(64, 16, generator=gen)).mean()


def cost(number, rank):
    """Every tenth item is dear, and rank 1 sits on a slow machine."""
    return (0.4 if number % 10 == 0 else 0.03) * (3 if rank == 1 else 1)


def merge(scores, total):
    table = torch.zeros(total)
    for number, value in scores.items():
        table[number] = value
    dist.all_reduce(table)
    return table


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("jobs", dist.distributed_c10d._get_default_store())
    model, scores = Scorer(), {}
    for name in ("valid", "test"):
        queue = WorkQueue(store, name, args.items)
        scores.clear()
        for number in queue:
            time.sleep(cost(number, rank))
            scores[number] = model.score(number)
        if rank == 0:
            queue.wait(world)
            print(f"{name}: everybody is through, rank 0 did {len(scores)}", flush=True)
        table = merge(scores, args.items)
        if rank == 0:
            print(f"{name}: mean score {table.mean():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
