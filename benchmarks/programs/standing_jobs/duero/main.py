"""Learns a one-step update of a diffusing field which is split by columns over the ranks."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from halo import Ring, exchange

log = logging.getLogger("field")


@dataclass
class Config:
    height: int = 16
    width: int = 48
    batch: int = 8
    steps: int = 60
    phases: tuple = ("wall", "wall", "torus")
    lr: float = 5e-3
    eval_every: int = 15
    seed: int = 31


class Stencil(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.a = nn.Conv2d(1, hidden, 3, padding=(1, 0))
        self.b = nn.Conv2d(hidden, 1, 1)

    def forward(self, padded):
        return padded[..., 1:-1] + self.b(torch.tanh(self.a(padded)))


def diffuse(full, boundary, rate=0.2):
    mode = "circular" if boundary == "torus" else "constant"
    side = F.pad(full, (1, 1, 0, 0), mode=mode)
    both = F.pad(side, (0, 0, 1, 1))
    lap = (both[..., 1:-1, :-2] + both[..., 1:-1, 2:] + both[..., :-2, 1:-1]
           + both[..., 2:, 1:-1] - 4 * full)
    return full + rate * lap


def boundary_of(cfg, step):
    """The problem gets harder during training: walls first, then a torus."""
    part = cfg.steps // len(cfg.phases)
    return cfg.phases[min(step // part, len(cfg.phases) - 1)]


class Solver:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = Stencil()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.cols = cfg.width // self.world
        self.boundary = boundary_of(cfg, 0)
        self.ring = self.make_ring()

    def make_ring(self):
        return Ring(self.rank, self.world, periodic=self.boundary == "torus")

    def sample(self, step):
        g = torch.Generator().manual_seed(self.cfg.seed * 1000 + step)
        return torch.randn(self.cfg.batch, 1, self.cfg.height, self.cfg.width, generator=g)

    def part(self, full):
        return full[..., self.rank * self.cols: (self.rank + 1) * self.cols].contiguous()

    def reduce_grads(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[at: at + p.numel()].view_as(p))
            at += p.numel()

    def refresh(self, step, source):
        wanted = boundary_of(self.cfg, step)
        if wanted != self.boundary and source.std() > 1.0:
            self.boundary = wanted
            self.ring = self.make_ring()
            if self.rank == 0:
                log.info("step %d: boundary is now %s", step, wanted)
        return self.boundary

    def step(self, step):
        full = self.sample(step)
        mine = self.part(full)
        boundary = self.refresh(step, mine)
        target = self.part(diffuse(full, boundary))
        loss = F.mse_loss(self.model(exchange(mine, self.ring)), target)
        self.opt.zero_grad()
        loss.backward()
        self.reduce_grads()
        self.opt.step()
        return loss.detach()

    def fit(self):
        for step in range(self.cfg.steps):
            loss = self.step(step)
            if (step + 1) % self.cfg.eval_every == 0:
                dist.all_reduce(loss)
                if self.rank == 0:
                    log.info("step %d loss %.5f", step + 1, loss.item() / self.world)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--seed", type=int, default=31)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    solver = Solver(Config(steps=args.steps, seed=args.seed))
    solver.fit()
    norm = sum(p.detach().norm() for p in solver.model.parameters())
    both = torch.stack([norm, -norm])
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    if solver.rank == 0:
        log.info("weight norm %.4f, spread %.1e", norm, (both[0] + both[1]).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
