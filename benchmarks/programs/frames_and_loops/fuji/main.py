import argparse
import datetime
import time
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from stats import FeatureStats


@dataclass
class RunConfig:
    name: str = "load-forecast"
    features: int = 20
    horizon: int = 4
    hidden: int = 64
    rows: int = 1600
    batch: int = 40
    epochs: int = 4
    lr: float = 3e-3
    huber: float = 1.0
    stats_from_epoch: int = 1
    drift: float = 0.4
    seed: int = 17


def get_config() -> RunConfig:
    ap = argparse.ArgumentParser("forecast")
    for f in fields(RunConfig):
        ap.add_argument("--" + f.name, type=type(f.default), default=f.default)
    return RunConfig(**vars(ap.parse_args()))


class SeriesData:
    """Synthetic load curves whose level drifts from epoch to epoch."""

    def __init__(self, cfg: RunConfig):
        self.cfg = cfg
        g = torch.Generator().manual_seed(cfg.seed)
        self.base = torch.randn(cfg.rows, cfg.features, generator=g)
        self.level = torch.rand(cfg.features, generator=g) * 2
        self.w = torch.randn(cfg.features, cfg.horizon, generator=g) / cfg.features ** 0.5
        self.noise = 0.05 * torch.randn(cfg.rows, cfg.horizon, generator=g)

    def raw(self, epoch: int) -> torch.Tensor:
        return self.base * (1 + 0.1 * epoch) + self.level * self.cfg.drift * epoch

    def targets(self) -> torch.Tensor:
        return torch.tanh(self.base @ self.w) + self.noise

    def batches(self, epoch: int, rank: int, world: int):
        g = torch.Generator().manual_seed(self.cfg.seed * 1000 + epoch)
        order = torch.randperm(self.cfg.rows, generator=g)
        usable = (len(order) // (world * self.cfg.batch)) * world * self.cfg.batch
        mine = order[:usable][rank::world]
        x, y = self.raw(epoch), self.targets()
        for idx in mine.split(self.cfg.batch):
            yield x[idx], y[idx]


class Forecaster(nn.Module):
    def __init__(self, cfg: RunConfig):
        super().__init__()
        self.inp = nn.Linear(cfg.features, cfg.hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(cfg.hidden), nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU())
            for _ in range(3)
        )
        self.out = nn.Linear(cfg.hidden, cfg.horizon)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


def evaluate(model, stats, data, epoch, rank, world):
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        x, y = data.raw(epoch)[rank::world], data.targets()[rank::world]
        pred = model.module(stats(x))
        total[0] = (pred - y).abs().sum()
        total[1] = y.numel()
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def main():
    cfg = get_config()
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)

    data = SeriesData(cfg)
    stats = FeatureStats(cfg, rank)
    model = DistributedDataParallel(Forecaster(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    steps = cfg.epochs * (cfg.rows // (world * cfg.batch))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=cfg.lr, total_steps=steps)
    loss_fn = nn.HuberLoss(delta=cfg.huber)

    for epoch in range(cfg.epochs):
        began = time.time()
        stats.refresh(epoch, data.raw(epoch))
        running = torch.zeros(())
        count = 0
        for x, y in data.batches(epoch, rank, world):
            loss = loss_fn(model(stats(x)), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            running += loss.detach()
            count += 1
        mae = evaluate(model, stats, data, epoch, rank, world)
        dist.all_reduce(running)
        if rank == 0:
            print(f"[{cfg.name}] epoch {epoch} steps {count} loss {running.item() / count / world:.4f} "
                  f"mae {mae:.4f} lr {sched.get_last_lr()[0]:.2e} {time.time() - began:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
