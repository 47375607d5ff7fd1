"""A three-stage pipeline with micro-batches (all forward, then all backward)."""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from link import Link
from stages import build_stage

log = logging.getLogger("pipe")


@dataclass
class Config:
    samples: int = 800
    features: int = 24
    classes: int = 5
    dim: int = 32
    batch: int = 64
    n_micro: int = 4
    epochs: int = 3
    lr: float = 3e-3
    seed: int = 2

    @property
    def steps_per_epoch(self):
        return self.samples // self.batch


def dataset(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    y = torch.randint(cfg.classes, (cfg.samples,), generator=g)
    means = torch.randn(cfg.classes, cfg.features, generator=g)
    x = means[y] + torch.randn(cfg.samples, cfg.features, generator=g)
    return TensorDataset(x, y)


def order(cfg, epoch):
    return torch.randperm(cfg.samples, generator=torch.Generator().manual_seed(cfg.seed + epoch))


class Stage:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.world - 1
        torch.manual_seed(cfg.seed * 10 + self.rank)
        self.net = build_stage(self.rank, self.world, cfg.features, cfg.dim, cfg.classes)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr)
        self.data = dataset(cfg) if self.first or self.last else None
        micro = cfg.batch // cfg.n_micro
        self.link = Link(self.rank, self.world, cfg.steps_per_epoch, cfg.n_micro, (micro, cfg.dim))

    def batches(self, epoch):
        if self.data is None:
            return [(None, None)] * self.cfg.steps_per_epoch
        idx = order(self.cfg, epoch)
        x, y = self.data.tensors
        cut = self.cfg.steps_per_epoch * self.cfg.batch
        return [(x[i], y[i]) for i in idx[:cut].split(self.cfg.batch)]

    def step(self, epoch, step, x, y):
        n = self.cfg.n_micro
        xs = x.chunk(n) if self.first else [None] * n
        ys = y.chunk(n) if self.last else [None] * n
        ins, outs, total = [], [], 0.0
        self.opt.zero_grad()
        for m in range(n):
            tag = self.link.tag(epoch, step, m)
            inp = xs[m] if self.first else self.link.pull_forward(tag)
            out = self.net(inp)
            if self.last:
                out = F.cross_entropy(out, ys[m]) / n
                total += out.item()
            else:
                self.link.push_forward(out.detach(), tag)
            ins.append(inp)
            outs.append(out)
        for m in range(n):
            tag = self.link.tag(epoch, step, m)
            if self.last:
                outs[m].backward()
            else:
                outs[m].backward(self.link.pull_backward(tag))
            if not self.first:
                self.link.push_backward(ins[m].grad, tag)
        self.link.drain()
        self.opt.step()
        return total

    def fit(self):
        for epoch in range(self.cfg.epochs):
            losses = [self.step(epoch, s, x, y) for s, (x, y) in enumerate(self.batches(epoch))]
            if self.last:
                log.info("epoch %d loss %.4f (%d steps)", epoch,
                         math.fsum(losses) / len(losses), len(losses))
            if epoch == 0 and self.first:
                log.info("first stage: %d parameters", sum(p.numel() for p in self.net.parameters()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--samples", type=int, default=800)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"stage{dist.get_rank()} %(message)s")
    Stage(Config(epochs=args.epochs, samples=args.samples)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
