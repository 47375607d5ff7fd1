"""Rank 0 builds an index for a while; the others wait for it twice."""
import argparse
import hashlib
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def build_index(path, seconds):
    """Works for about the given time, as a tokeniser or an indexer does."""
    digest, end = hashlib.sha256(), time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        digest.update(str(rounds).encode())
        rounds += 1
        if rounds % 500 == 0:
            time.sleep(0.005)
    path.parent.mkdir(exist_ok=True)
    torch.save({"rounds": rounds, "digest": digest.hexdigest()}, path)


class Stage:
    def __init__(self, rank):
        self.rank = rank

    def __enter__(self):
        if self.rank != 0:
            dist.monitored_barrier(timeout=timedelta(minutes=5))
        return self

    def __exit__(self, *exc):
        if self.rank == 0:
            dist.monitored_barrier(timeout=timedelta(minutes=5))


def load(path, rank, seconds):
    with Stage(rank):
        if rank == 0:
            build_index(path, seconds)
        return torch.load(path, weights_only=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--work", type=Path, default=Path("dune_work"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    index = load(args.work / "index.pt", rank, args.seconds)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * 3 + rank))
        opt.zero_grad()
        (model(x) - x).square().mean().backward()
        opt.step()
        if step == args.steps // 2:
            if rank == 0:
                time.sleep(args.seconds / 2)
                torch.save(model.module.state_dict(), args.work / "half.pt")
            dist.barrier()
    if rank == 0:
        print(f"index of {index['rounds']} rounds, trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
