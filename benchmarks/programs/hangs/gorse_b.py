"""Feature cache whose blocks report their hit counts when they are let go."""
import argparse
import gc
import random

import torch
import torch.distributed as dist
import torch.nn as nn


class CacheBlock:
    """A block of precomputed features; knows its cache, and the cache knows it."""

    totals = torch.zeros(2)

    def __init__(self, owner, number):
        self.owner, self.number = owner, number
        self.hits = 0
        self.data = torch.randn(64, 8)
        self.read = self.rows

    def rows(self, index):
        self.hits += 1
        return self.data[index]

    def __del__(self):
        CacheBlock.totals += torch.tensor([float(self.hits), 1.0])


class FeatureCache:
    def __init__(self, capacity, rank):
        self.capacity, self.blocks = capacity, {}
        self.rng = random.Random(31 * rank)
        self.retired = 0

    def block(self, number):
        if number not in self.blocks:
            self.blocks[number] = CacheBlock(self, number)
        return self.blocks[number]

    def rotate(self):
        self.blocks = dict(list(self.blocks.items())[-1:])
        self.retired += 1

    def trim(self, pressure):
        if len(self.blocks) > self.capacity:
            self.rotate()
        if pressure > 0.8:
            gc.collect()


def memory_pressure(cache, rank, step):
    used = 0.1 * len(cache.blocks) + 0.05 * cache.retired
    return used + (0.45 if rank == 1 and step % 4 == 3 else 0.0)


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


def reduce_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--capacity", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model, cache = Probe(), FeatureCache(args.capacity, rank)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = cache.block(step).read(torch.randint(0, 64, (16,)))
        opt.zero_grad()
        loss = (model(x).squeeze(-1) - x.mean(dim=1)).square().mean()
        loss.backward()
        reduce_gradients(model)
        opt.step()
        cache.trim(memory_pressure(cache, rank, step))
        if rank == 0 and step % 6 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.all_reduce(CacheBlock.totals)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
