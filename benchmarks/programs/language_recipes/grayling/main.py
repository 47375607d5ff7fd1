"""Class-conditional diffusion, data parallel, averaged weights kept on one rank only.

    torchrun --nproc-per-node 2 grayling/main.py

The shadow weights live on rank 0 (they cost a full copy of the model). When the
run samples, rank 0 hands them to all ranks, each draws its share of the images.
"""
import argparse
import copy
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diffusion import Denoiser, Schedule
from ema import EMA

log = logging.getLogger("ddpm")


@dataclass
class Config:
    classes: int = 4
    points: int = 1536
    batch: int = 64
    epochs: int = 4
    noise_steps: int = 30
    drop_class: float = 0.1
    lr: float = 2e-3
    ema: float = 0.99
    sample_per_class: int = 32
    sample_every: int = 2
    seed: int = 1010


def dataset(cfg: Config) -> TensorDataset:
    g = torch.Generator().manual_seed(cfg.seed)
    c = torch.randint(0, cfg.classes, (cfg.points,), generator=g)
    ang = 2 * torch.pi * c / cfg.classes
    mean = torch.stack([ang.cos(), ang.sin()], -1)
    return TensorDataset(mean + 0.1 * torch.randn(cfg.points, 2, generator=g), c)


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        net = Denoiser(cfg.classes)
        self.model = DDP(net)
        self.ema = EMA(net, cfg.ema) if self.rank == 0 else None
        self.sampler_net = copy.deepcopy(net).eval().requires_grad_(False)
        self.opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=1e-4)
        ds = dataset(cfg)
        self.dsampler = DistributedSampler(ds, self.world, self.rank, shuffle=True, seed=cfg.seed, drop_last=True)
        self.loader = DataLoader(ds, cfg.batch, sampler=self.dsampler, drop_last=True)
        self.schedule = Schedule(cfg.noise_steps)
        self.gen = torch.Generator().manual_seed(cfg.seed * 17 + self.rank)

    def loss(self, x, c):
        t = torch.randint(0, self.schedule.steps, (len(x),), generator=self.gen)
        eps = torch.randn(x.shape, generator=self.gen)
        drop = torch.rand(len(x), generator=self.gen) < self.cfg.drop_class
        c = torch.where(drop, torch.full_like(c, self.cfg.classes), c)
        return F.mse_loss(self.model(self.schedule.add_noise(x, eps, t), t, c), eps)

    def train_epoch(self, epoch: int) -> float:
        self.dsampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, c in self.loader:
            loss = self.loss(x, c)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            if self.ema is not None:
                self.ema.update(self.model.module)
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def share_ema(self):
        if self.ema is not None:
            self.ema.copy_to(self.sampler_net)
        for p in self.sampler_net.parameters():
            dist.broadcast(p.data, src=0)

    def sample_report(self, epoch: int):
        self.share_ema()
        n = self.cfg.sample_per_class // self.world
        c = torch.arange(self.cfg.classes).repeat_interleave(n)
        x = self.schedule.sample(self.sampler_net, c, self.gen)
        pieces = [torch.empty_like(x) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(x, pieces, dst=0)
        if self.rank == 0:
            pts, lab = torch.cat(pieces), c.repeat(self.world)
            ang = 2 * torch.pi * lab / self.cfg.classes
            err = (pts - torch.stack([ang.cos(), ang.sin()], -1)).norm(dim=-1)
            log.info("epoch %d samples %d mean distance %.3f", epoch, len(pts), err.mean())

    def save(self):
        """Rank 0 writes model and shadow; nobody needs to wait for it."""
        if self.rank == 0:
            t0 = time.perf_counter()
            torch.save({"model": self.model.module.state_dict(), "ema": self.ema.shadow,
                        "updates": self.ema.updates, "opt": self.opt.state_dict()}, "grayling.pt")
            log.info("checkpoint in %.2fs", time.perf_counter() - t0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--lr", type=float, default=Config.lr)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = Trainer(Config(epochs=a.epochs, lr=a.lr))
    for epoch in range(t.cfg.epochs):
        loss = t.train_epoch(epoch)
        if t.rank == 0:
            log.info("epoch %d loss %.4f", epoch, loss)
        if (epoch + 1) % t.cfg.sample_every == 0:
            t.sample_report(epoch)
            t.save()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
