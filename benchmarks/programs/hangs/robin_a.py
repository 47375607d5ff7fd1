"""Uneven shards under Join, with a running loss for the progress line."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


class Meter:
    def __init__(self, decay=0.9):
        self.decay, self.value = decay, None

    def update(self, value):
        self.value = value if self.value is None else self.decay * self.value + (1 - self.decay) * value
        return self.value


class Progress:
    """One line for the whole job."""

    def __init__(self, total, every):
        self.total, self.every = total, every
        self.meter = Meter()

    def advance(self, step, loss):
        mean = average(loss)
        smooth = self.meter.update(mean)
        if dist.get_rank() == 0 and step % self.every == 0:
            print(f"{step}/{self.total} loss {smooth:.4f}", flush=True)


def average(value):
    tensor = value.detach().clone().reshape(1)
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


def shard_rows(rank, world, rows):
    """Files are dealt out whole; they have different lengths."""
    files = [rows - 40 * (n % 3 == 2) for n in range(2 * world)]
    return [files[n] for n in range(len(files)) if n % world == rank]


def batches(rank, world, rows, size):
    for number, length in enumerate(shard_rows(rank, world, rows)):
        gen = torch.Generator().manual_seed(number * 100 + rank)
        for start in range(0, length, size):
            x = torch.randn(min(size, length - start), 6, generator=gen)
            yield x, x.cumsum(dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--every", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    steps = sum(math.ceil(length / args.batch_size) for length in shard_rows(rank, world, args.rows))
    progress = Progress(steps, args.every)
    with Join([model]):
        for step, (x, y) in enumerate(batches(rank, world, args.rows, args.batch_size)):
            opt.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            opt.step()
            progress.advance(step, loss)
    print(f"[{rank}] did {steps} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
