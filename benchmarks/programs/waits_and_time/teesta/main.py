#!/usr/bin/env python
"""Small diffusion model on 2-D points; a part of the ranks also keeps and scores the averaged weights."""
import copy
import logging
import math
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("teesta")

CONF = SimpleNamespace(
    points=3000, hidden=96, levels=40, batch=64, steps=150, lr=2e-3, decay=0.98, score_every=30, scorers=2, seed=90
)


class Denoise(nn.Module):
    def __init__(self, hidden, levels):
        super().__init__()
        self.when = nn.Embedding(levels, hidden)
        self.a = nn.Linear(2, hidden)
        self.b = nn.Linear(hidden, hidden)
        self.c = nn.Linear(hidden, 2)

    def forward(self, x, t):
        h = torch.nn.functional.silu(self.a(x) + self.when(t))
        return self.c(h + torch.nn.functional.silu(self.b(h)))


class Schedule:
    def __init__(self, levels):
        t = torch.arange(levels + 1) / levels
        self.keep = torch.cos(t[1:] * math.pi / 2 * 0.98) ** 2

    def noise(self, x, t, eps):
        k = self.keep[t][:, None]
        return k.sqrt() * x + (1 - k).sqrt() * eps


def two_moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    a = torch.rand(n, generator=g) * math.pi
    up = torch.arange(n) % 2 == 0
    x = torch.where(up, torch.cos(a), 1 - torch.cos(a))
    y = torch.where(up, torch.sin(a), 0.5 - torch.sin(a))
    return torch.stack([x, y], 1) + 0.06 * torch.randn(n, 2, generator=g)


class Averaged:
    """Exponential moving average of the weights, scored by a few ranks together."""

    def __init__(self, model, ranks, group, decay):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self.ranks = ranks
        self.group = group

    @torch.no_grad()
    def follow(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - self.decay)

    @torch.no_grad()
    def score(self, data, schedule, step):
        share = data[dist.get_rank(self.group)::len(self.ranks)]
        g = torch.Generator().manual_seed(step)
        t = torch.randint(0, len(schedule.keep), (len(share),), generator=g)
        eps = torch.randn(share.shape, generator=g)
        err = ((self.model(schedule.noise(share, t, eps), t) - eps) ** 2).sum(1)
        both = torch.stack([err.sum(), torch.tensor(float(len(err)))])
        dist.all_reduce(both, group=self.group)
        return (both[0] / both[1]).item()


class Run:
    def __init__(self, conf):
        self.conf = conf
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(conf.seed)
        self.model = Denoise(conf.hidden, conf.levels)
        self.schedule = Schedule(conf.levels)
        self.data = two_moons(conf.points, conf.seed)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=conf.lr)
        self.averaged = None
        scorers = list(range(min(conf.scorers, self.world)))
        group = dist.new_group(scorers, group_desc="scorers")
        if self.rank in scorers:
            self.averaged = Averaged(self.model, scorers, group, conf.decay)
        self.control = dist.new_group(group_desc="control")
        self.mine = self.data[self.rank::self.world]
        self.g = torch.Generator().manual_seed(conf.seed * 3 + self.rank)

    def one_step(self):
        idx = torch.randint(0, len(self.mine), (self.conf.batch,), generator=self.g)
        x = self.mine[idx]
        t = torch.randint(0, self.conf.levels, (len(x),), generator=self.g)
        eps = torch.randn(x.shape, generator=self.g)
        loss = ((self.model(self.schedule.noise(x, t, eps), t) - eps) ** 2).sum(1).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.opt.step()
        return loss.item()

    def go(self):
        for step in range(1, self.conf.steps + 1):
            loss = self.one_step()
            if self.averaged is not None:
                self.averaged.follow(self.model)
                if step % self.conf.score_every == 0:
                    s = self.averaged.score(self.data, self.schedule, step)
                    if self.rank == 0:
                        log.info("step %d loss %.4f averaged %.4f", step, loss, s)
            if step % self.conf.score_every == 0:
                self.roll_call(step, loss)

    def roll_call(self, step, loss):
        notes = [None] * self.world
        dist.all_gather_object(notes, {"rank": self.rank, "step": step, "loss": loss}, group=self.control)
        worst = max(notes, key=lambda n: n["loss"])
        if self.rank == 0:
            log.info("step %d highest loss %.4f on rank %d", worst["step"], worst["loss"], worst["rank"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s ({os.environ['RANK']}) %(message)s")
    log.info("starting, %d ranks", dist.get_world_size())
    Run(CONF).go()
    dist.destroy_process_group()
