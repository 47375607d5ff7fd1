"""Noise predictor with averaged weights that are blended back into the trained ones now and then."""
import copy
import logging
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

CONFIG = {
    "steps": 48,
    "batch": 16,
    "lr": 2e-3,
    "ema": {"beta": 0.9, "start": 4, "update_model_every": 12},
    "seed": 21,
}


class Averaged:
    """Exponential moving average of a model, and the way back."""

    def __init__(self, online, beta, start, update_model_every):
        self.online = online
        self.shadow = copy.deepcopy(online).requires_grad_(False)
        self.beta, self.start, self.every = beta, start, update_model_every
        self.count = 0

    @torch.no_grad()
    def update(self):
        self.count += 1
        if self.count <= self.start:
            self.shadow.load_state_dict(self.online.state_dict())
            return
        for s, p in zip(self.shadow.parameters(), self.online.parameters()):
            s.lerp_(p, 1 - self.beta)
        if self.count % self.every == 0:
            self.online.load_state_dict(self.shadow.state_dict())


class Predictor(nn.Module):
    def __init__(self, dim=8, width=48):
        super().__init__()
        self.time = nn.Embedding(50, width)
        self.inp = nn.Linear(dim, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, dim)

    def forward(self, x, t):
        h = torch.nn.functional.silu(self.inp(x) + self.time(t))
        return self.out(torch.nn.functional.silu(self.mid(h)))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(cfg["seed"])
        self.model = DDP(Predictor())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg["lr"])
        self.ema = None
        if self.rank == 0:
            self.ema = Averaged(self.model.module, **cfg["ema"])
        self.gen = torch.Generator().manual_seed(cfg["seed"] + 100 * self.rank)
        self.alpha = torch.linspace(0.99, 0.05, 50)

    def batch(self):
        n = self.cfg["batch"]
        x0 = torch.randn(n, 8, generator=self.gen).sign() * 0.8
        t = torch.randint(0, 50, (n,), generator=self.gen)
        eps = torch.randn(n, 8, generator=self.gen)
        a = self.alpha[t, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * eps, t, eps

    def step(self):
        x, t, eps = self.batch()
        loss = (self.model(x, t) - eps).pow(2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        if self.ema is not None:
            self.ema.update()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    logging.basicConfig(stream=sys.stdout, level=logging.INFO if dist.get_rank() == 0 else logging.ERROR)
    trainer = Trainer(CONFIG)
    for i in range(CONFIG["steps"]):
        loss = trainer.step()
        if i % 12 == 11:
            logging.info("step %d loss %.4f", i + 1, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
