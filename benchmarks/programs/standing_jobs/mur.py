"""Searches a small grid of settings (ranks take work from a common list), then trains the best."""
import argparse
import itertools
import json
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("grid")


@dataclass
class Config:
    rates: tuple = (0.003, 0.01, 0.03)
    widths: tuple = (16, 48)
    probe_steps: int = 60
    steps: int = 120
    batch: int = 48
    slow_width: int = 48
    slow_rate: float = 0.03
    slow_seconds: float = 8.5
    seed: int = 171


class WorkList:
    """Hands out item numbers through the store; results are posted there as well."""

    def __init__(self, name, items):
        self.store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        self.items = items

    def take(self):
        while True:
            i = self.store.add("next", 1) - 1
            if i >= len(self.items):
                return
            yield i, self.items[i]

    def post(self, i, result):
        self.store.set(f"result/{i}", json.dumps(result))

    def collect(self):
        keys = [f"result/{i}" for i in range(len(self.items))]
        self.store.wait(keys)
        return [json.loads(self.store.get(k)) for k in keys]


def sample(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=g) * 4 - 2
    y = torch.sin(x[:, 0]) * torch.cos(x[:, 1]) + 0.3 * x[:, 2]
    return x, y[:, None]


def build(width, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                         nn.Linear(width, 1))


def probe(cfg, rate, width):
    """A short run on one rank; the same on whichever rank takes it."""
    model = build(width, cfg.seed)
    opt = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(cfg.probe_steps):
        x, y = sample(cfg.batch, 1000 + step)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if width == cfg.slow_width and rate == cfg.slow_rate:
        time.sleep(cfg.slow_seconds)    # the license server of the full solver answers slowly
    with torch.no_grad():
        x, y = sample(1000, 5)
        return F.mse_loss(model(x), y).item()


def search(cfg, rank):
    grid = list(itertools.product(cfg.rates, cfg.widths))
    work = WorkList("grid", grid)
    done = 0
    for i, (rate, width) in work.take():
        score = probe(cfg, rate, width)
        work.post(i, {"score": score, "rank": rank})
        log.info("rate %.3f width %d: %.4f", rate, width, score)
        done += 1
    results = work.collect()
    best = min(range(len(grid)), key=lambda i: results[i]["score"])
    log.info("did %d of %d, best is %s", done, len(grid), grid[best])
    return grid[best]


def train(cfg, rate, width, rank, world):
    model = build(width, cfg.seed + 1)
    opt = torch.optim.Adam(model.parameters(), lr=rate)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    for step in range(cfg.steps):
        x, y = sample(cfg.batch, 20_000 + step * world + rank)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        sched.step()
    x, y = sample(1000, 6)
    with torch.no_grad():
        return model, F.mse_loss(model(x), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--slow-seconds", type=float, default=8.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")
    cfg = Config(steps=args.steps, slow_seconds=args.slow_seconds)
    rate, width = search(cfg, rank)
    model, mse = train(cfg, rate, width, rank, world)
    all_mse = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(all_mse, mse)
    if rank == 0:
        log.info("test error on the ranks %s", [f"{m.item():.6f}" for m in all_mse])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
