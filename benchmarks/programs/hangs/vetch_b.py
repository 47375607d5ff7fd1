"""Stops as soon as the plotting process is content; a marker file tells the others."""
import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Marker:
    """Shared through the run directory."""

    def __init__(self, folder):
        self.path = Path(folder) / "STOP"

    def clear(self, rank):
        if rank == 0:
            self.path.parent.mkdir(exist_ok=True)
            self.path.unlink(missing_ok=True)
        dist.barrier()

    def raise_flag(self):
        self.path.touch()

    @property
    def up(self):
        return os.path.exists(self.path)


class Plotter:
    def __init__(self, rank, pace):
        self.rank, self.pace, self.curve = rank, pace, []

    def draw(self, loss):
        self.curve.append(loss)
        if self.rank == 0:
            time.sleep(self.pace)

    def flat(self, window=4, tolerance=0.02):
        recent = self.curve[-window:]
        return len(recent) == window and max(recent) - min(recent) < tolerance


class Monitor:
    def __init__(self, marker, plotter, rank):
        self.marker, self.plotter, self.rank = marker, plotter, rank

    def finished(self, loss):
        self.plotter.draw(loss)
        if self.rank == 0 and self.plotter.flat():
            self.marker.raise_flag()
        dist.barrier()
        return self.marker.up


def evaluate(model, rank, step):
    gen = torch.Generator().manual_seed(step + 100 * rank)
    x = torch.randn(64, 6, generator=gen)
    with torch.no_grad():
        loss = (model.module(x) - x.tanh()).square().mean()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="vetch_run")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--eval-every", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6)))
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    marker = Marker(args.run)
    marker.clear(rank)
    monitor = Monitor(marker, Plotter(rank, 0.3), rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(32, 6)
        opt.zero_grad()
        (model(x) - x.tanh()).square().mean().backward()
        opt.step()
        if step % args.eval_every == 0 and monitor.finished(evaluate(model, rank, step)):
            break
    final = evaluate(model, rank, 0)
    if rank == 0:
        print(f"stopped after {step} steps, loss {final:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
