"""Fit a sine-activated field (SIREN style) to a synthetic height map, data parallel over pixels."""
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from comm import BucketReducer


@dataclass
class Config:
    side: int = 64
    hidden: int = 64
    depth: int = 3
    omega: float = 12.0
    steps: int = 120
    pixels: int = 512
    lr: float = 1e-3
    seed: int = 21
    report: int = 20
    out: str = os.path.join(tempfile.gettempdir(), "heightfield_b")


class Sine(nn.Module):
    def __init__(self, fan_in, fan_out, omega, first=False):
        super().__init__()
        self.omega = omega
        self.lin = nn.Linear(fan_in, fan_out)
        bound = 1 / fan_in if first else math.sqrt(6 / fan_in) / omega
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.lin(x))


class Field(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        layers = [Sine(2, cfg.hidden, cfg.omega, first=True)]
        layers += [Sine(cfg.hidden, cfg.hidden, cfg.omega) for _ in range(cfg.depth - 1)]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(cfg.hidden, 1)

    def forward(self, xy):
        return self.head(self.trunk(xy)).squeeze(-1)


def height_map(side):
    axis = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    z = torch.exp(-6 * ((x - 0.3) ** 2 + (y + 0.2) ** 2)) + 0.4 * torch.sin(5 * x) * torch.cos(4 * y)
    return torch.stack([x, y], -1).reshape(-1, 2), z.reshape(-1)


class PixelStream:
    """Every rank owns a stripe of the map's pixels and draws from it at random."""

    def __init__(self, cfg, rank, world):
        xy, z = height_map(cfg.side)
        own = torch.arange(rank, len(z), world)
        self.xy, self.z = xy[own], z[own]
        self.gen = torch.Generator().manual_seed(cfg.seed * 1000 + rank)
        self.count = cfg.pixels

    def next(self):
        pick = torch.randint(len(self.z), (self.count,), generator=self.gen)
        return self.xy[pick], self.z[pick]


def psnr(model, cfg):
    with torch.no_grad():
        xy, z = height_map(cfg.side)
        mse = F.mse_loss(model(xy), z)
    return (10 * torch.log10((z.max() - z.min()) ** 2 / mse)).item()


def run(cfg):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    model = Field(cfg)
    reducer = BucketReducer(model.parameters())
    reducer.broadcast_parameters()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    anneal = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.steps)
    stream = PixelStream(cfg, rank, world)
    history = []
    for step in range(1, cfg.steps + 1):
        xy, z = stream.next()
        loss = F.mse_loss(model(xy), z)
        optimizer.zero_grad()
        loss.backward()
        reducer.reduce()
        optimizer.step()
        anneal.step()
        if step % cfg.report == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            shown /= world
            history.append({"step": step, "mse": shown.item(), "buckets": reducer.calls})
            if rank == 0:
                print(f"[{step:4d}] mse {shown.item():.5f}  lr {anneal.get_last_lr()[0]:.2e}", flush=True)
    if rank == 0:
        os.makedirs(cfg.out, exist_ok=True)
        torch.save({"field": model.state_dict(), "config": asdict(cfg)}, os.path.join(cfg.out, "field.pt"))
        with open(os.path.join(cfg.out, "history.json"), "w") as f:
            json.dump(history, f)
        print(f"psnr {psnr(model, cfg):.2f} dB", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(Config())
