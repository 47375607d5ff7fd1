"""Deep ensemble: each rank trains one member, the members only meet for prediction."""
import logging
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("ensemble")


@dataclass
class Config:
    epochs: int = 6
    batch: int = 32
    width: int = 64
    lr: float = 6e-3
    rows: int = 640
    base_seed: int = 300


class Member(nn.Module):
    """Mean and variance of a one-dimensional target."""

    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        mean, raw = self.net(x).unbind(1)
        return mean, nn.functional.softplus(raw) + 1e-3


def table(n, seed, spread=1.0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g) * spread
    y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * (1 + x[:, 0].abs()) * torch.randn(n, generator=g)
    return x, y


def nll(mean, var, y):
    return 0.5 * (var.log() + (y - mean).pow(2) / var + math.log(2 * math.pi))


def train_member(cfg, number):
    torch.manual_seed(cfg.base_seed + number)
    member = Member(cfg.width)
    x, y = table(cfg.rows, seed=1)
    order = torch.Generator().manual_seed(cfg.base_seed * 7 + number)
    loader = DataLoader(TensorDataset(x, y), batch_size=cfg.batch, shuffle=True, generator=order)
    opt = torch.optim.Adam(member.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(loader))
    for epoch in range(cfg.epochs):
        total = 0.0
        for bx, by in loader:
            loss = nll(*member(bx), by).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item() * len(bx)
        log.info("member %d epoch %d nll %.4f", number, epoch, total / cfg.rows)
    return member


@torch.no_grad()
def mixture(member, x, world):
    """Moments of the mixture of all members."""
    mean, var = member(x)
    first, second = mean.clone(), var + mean ** 2
    dist.all_reduce(first)
    dist.all_reduce(second)
    first, second = first / world, second / world
    return first, (second - first ** 2).clamp(min=1e-6)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg = Config()
    member = train_member(cfg, rank)
    x, y = table(300, seed=2)
    far, _ = table(300, seed=3, spread=4.0)
    own = nll(*member(x), y).mean().detach()
    everyone = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(everyone, own)
    joint = nll(*mixture(member, x, world), y).mean()
    near_std = mixture(member, x, world)[1].sqrt().mean()
    far_std = mixture(member, far, world)[1].sqrt().mean()
    if rank == 0:
        log.info("members %s", " ".join(f"{v.item():.4f}" for v in everyone))
        log.info("ensemble nll %.4f std near %.3f far %.3f", joint, near_std, far_std)
    os.makedirs("runs", exist_ok=True)
    torch.save(member.state_dict(), f"runs/member{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
