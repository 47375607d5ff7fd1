import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from model import build
from timing import Timers, TraceWindow, group_fence

log = logging.getLogger("train")


@dataclass
class Config:
    n: int = 1600
    features: int = 10
    width: int = 32
    depth: int = 2
    batch: int = 25
    epochs: int = 4
    lr: float = 3e-3
    trace_start: int = 40
    trace_steps: int = 5
    seed: int = 221


class Engine:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = build(cfg.features, cfg.width, cfg.depth)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.window = TraceWindow(cfg.trace_start, cfg.trace_steps)
        self.timers = Timers(enabled=True, fence=group_fence)
        g = torch.Generator().manual_seed(cfg.seed)
        x = torch.randn(cfg.n, cfg.features, generator=g)
        y = (x[:, :3].prod(1) + x[:, 3:6].sum(1)).tanh()[:, None]
        self.data = TensorDataset(x, y)
        self.sampler = DistributedSampler(self.data, seed=cfg.seed)
        self.loader = DataLoader(self.data, cfg.batch, sampler=self.sampler)
        self.steps = 0

    def exchange(self):
        work = []
        for p in self.model.parameters():
            p.grad /= self.world
            work.append(dist.all_reduce(p.grad, async_op=True))
        for w in work:
            w.wait()

    def step(self, x, y):
        exact = self.steps in self.window
        with self.timers.span("forward", exact):
            loss = F.mse_loss(self.model(x), y)
        with self.timers.span("backward", exact):
            self.opt.zero_grad()
            loss.backward()
        with self.timers.span("exchange", exact):
            self.exchange()
        with self.timers.span("update", exact):
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
        self.steps += 1
        return loss.item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            tally = torch.zeros(2)
            for x, y in self.loader:
                tally += torch.tensor([self.step(x, y) * len(x), len(x)])
            dist.all_reduce(tally)
            if self.rank == 0:
                log.info("epoch %d loss %.4f", epoch, tally[0] / tally[1])
        if self.rank == 0:
            log.info(self.timers.table())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--trace-start", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    Engine(Config(epochs=args.epochs, trace_start=args.trace_start)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
