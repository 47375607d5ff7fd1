"""Check raw records on every rank, collect the findings, then train on what is left."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("records")


class RecordProblem(Exception):
    def __init__(self, shard, row, reason):
        super().__init__(f"shard {shard} row {row}: {reason}")
        self.shard = shard
        self.row = row
        self.reason = reason


def raw_records(shard, count):
    g = torch.Generator().manual_seed(300 + shard)
    rows = torch.randn(count, 7, generator=g)
    rows[(shard * 5 + 3) % count, 2] = float("inf")
    return rows


def inspect(shard, row, values):
    if not torch.isfinite(values).all():
        raise RecordProblem(shard, row, "not finite")


class Intake:
    def __init__(self, rank, world, shards, count):
        self.shards = range(rank, shards, world)
        self.count = count
        self.problems = []

    def clean(self):
        kept = []
        for shard in self.shards:
            for row, values in enumerate(raw_records(shard, self.count)):
                try:
                    inspect(shard, row, values)
                except RecordProblem as problem:
                    self.problems.append(problem)
                else:
                    kept.append(values)
        return torch.stack(kept)


class Findings:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def share(self, problems):
        try:
            inbox = [None] * self.world if self.rank == 0 else None
            dist.gather_object(problems, inbox, dst=0)
            if self.rank == 0:
                print(f"{sum(map(len, inbox))} records rejected", flush=True)
            dist.barrier()
        except Exception as err:
            log.debug("findings unavailable: %s", err)


def train(rows, steps, world):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(steps):
        loss = (net(rows[:, :6]).squeeze(-1) - rows[:, 6]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=int, default=6)
    p.add_argument("--count", type=int, default=32)
    p.add_argument("--steps", type=int, default=20)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    intake = Intake(rank, world, a.shards, a.count)
    rows = intake.clean()
    Findings(rank, world).share(intake.problems)
    loss = train(rows, a.steps, world)
    if rank == 0:
        print(f"loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
