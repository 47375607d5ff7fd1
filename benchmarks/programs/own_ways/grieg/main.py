"""Patch classifier with an own gradient reducer that overlaps with backward."""
import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from overlap import GradientBuckets


@dataclass
class Options:
    epochs: int = 3
    batch: int = 16
    accum: int = 2
    lr: float = 0.04
    momentum: float = 0.9
    smooth: float = 0.1
    seed: int = 4


def options():
    p = argparse.ArgumentParser()
    for k, v in vars(Options()).items():
        p.add_argument(f"--{k}", type=type(v), default=v)
    return Options(**vars(p.parse_args()))


class Texture:
    """Array data set with a shared permutation per epoch."""

    def __init__(self, n, seed, classes=6, size=12):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, classes, n)
        grid = np.stack(np.meshgrid(np.arange(size), np.arange(size)), 0)
        angle = np.pi * self.y / classes
        wave = np.cos(angle)[:, None, None] * grid[0] + np.sin(angle)[:, None, None] * grid[1]
        phase = rng.uniform(0, 6.28, (n, 1, 1))
        self.x = (np.sin(1.1 * wave + phase) + rng.normal(0, 0.9, wave.shape)).astype(np.float32)

    def batches(self, size, rank, world, epoch=None, seed=0):
        n = len(self.y)
        order = np.arange(n) if epoch is None else \
            np.random.default_rng((seed, epoch)).permutation(n)
        order = order[:n // (size * world) * size * world]
        for at in range(rank * size, len(order), size * world):
            pick = order[at:at + size]
            yield torch.from_numpy(self.x[pick]).unsqueeze(1), torch.from_numpy(self.y[pick])


def network(classes=6):
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 9, 128), nn.ReLU(), nn.Linear(128, classes))


@torch.no_grad()
def accuracy(model, data, rank, world):
    model.eval()
    hits = torch.zeros(2)
    for x, y in data.batches(32, rank, world):
        hits += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(hits)
    model.train()
    return (hits[0] / hits[1]).item()


def main():
    o = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(o.seed)
    model = network()
    buckets = GradientBuckets(model.parameters())
    buckets.broadcast()
    opt = torch.optim.SGD(model.parameters(), lr=o.lr, momentum=o.momentum, weight_decay=1e-4)
    train, test = Texture(768, 1), Texture(256, 2)
    steps = o.epochs * (len(train.y) // (o.batch * world * o.accum))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, o.lr, total_steps=steps, pct_start=0.2)

    step, t0 = 0, time.time()
    for epoch in range(o.epochs):
        loss_sum, pending = 0.0, 0
        for x, y in train.batches(o.batch, rank, world, epoch, o.seed):
            pending += 1
            buckets.enabled = pending == o.accum
            loss = F.cross_entropy(model(x), y, label_smoothing=o.smooth) / o.accum
            loss.backward()
            loss_sum += loss.item()
            if pending < o.accum:
                continue
            buckets.finish()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            buckets.drain()
            opt.zero_grad(set_to_none=True)
            sched.step()
            step += 1
            pending = 0
            if rank == 0 and step % 4 == 0:
                print(f"{time.time() - t0:5.1f}s epoch {epoch} step {step}/{steps} "
                      f"loss {loss_sum / 4:.4f} lr {sched.get_last_lr()[0]:.4f}", flush=True)
                loss_sum = 0.0
            elif step % 4 == 0:
                loss_sum = 0.0
        acc = accuracy(model, test, rank, world)
        if rank == 0:
            print(f"epoch {epoch} test accuracy {acc:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
