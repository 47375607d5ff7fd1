from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shard_optim import ShardedOptimizer


@dataclass
class Config:
    steps: int = 30
    batch: int = 16
    d: int = 48
    lr: float = 1e-3
    init_scale: float = 2.0 ** 10
    growth_interval: int = 2
    warm: int = 5


class Tower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.stem = nn.Linear(20, d)
        self.mid = nn.Linear(d, d)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        h = torch.relu(self.mid(h))
        return self.head(h).squeeze(-1)


class AmpTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(3)
        self.model = Tower(cfg.d)
        self.optim = ShardedOptimizer(self.model.parameters(), torch.optim.Adam, lr=cfg.lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=cfg.init_scale, growth_interval=cfg.growth_interval)

    def half_roundtrip(self):
        """Gradients live in fp16 between backward and the optimizer."""
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.copy_(p.grad.half().float())

    def train_step(self, x, y):
        for p in self.model.parameters():
            p.grad = None
        loss = F.smooth_l1_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.optim.reduce_gradients()
        self.half_roundtrip()
        self.scaler.unscale_(self.optim)
        self.scaler.step(self.optim)
        self.scaler.update()
        return loss.detach()


def make_loader(cfg):
    g = torch.Generator().manual_seed(21)
    x = torch.randn(2000, 20, generator=g)
    y = 40 * x[:, 0] - 25 * x[:, 1] * x[:, 2] + torch.randn(2000, generator=g)
    ds = TensorDataset(x, y)
    return DataLoader(ds, batch_size=cfg.batch, sampler=DistributedSampler(ds, seed=1), drop_last=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    cfg = Config()
    trainer = AmpTrainer(cfg)
    for step, (x, y) in enumerate(make_loader(cfg)):
        if step == cfg.steps:
            break
        loss = trainer.train_step(x, y)
        if step % 5 == 0:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"{step:3d} loss {loss.item():.4f} scale {trainer.scaler.get_scale():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
