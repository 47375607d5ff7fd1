"""Toy denoising diffusion on 2-D glyphs, data parallel."""
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass(frozen=True)
class Config:
    seed: int = 1234
    images: int = 512
    side: int = 8
    batch: int = 16
    epochs: int = 4
    levels: int = 50
    lr: float = 1e-3


class Glyphs(Dataset):
    def __init__(self, cfg: Config):
        g = torch.Generator().manual_seed(99)
        grid = torch.linspace(-1, 1, cfg.side)
        xx, yy = torch.meshgrid(grid, grid, indexing="ij")
        angle = torch.rand(cfg.images, 1, 1, generator=g) * math.pi
        shift = torch.rand(cfg.images, 1, 1, generator=g) - 0.5
        self.pictures = torch.tanh(6 * (xx * angle.cos() + yy * angle.sin() - shift)).flatten(1)

    def __len__(self):
        return self.pictures.shape[0]

    def __getitem__(self, index):
        return self.pictures[index]


class Denoiser(nn.Module):
    def __init__(self, pixels, levels, width=128):
        super().__init__()
        self.when = nn.Embedding(levels, width)
        self.inp = nn.Linear(pixels, width)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.out = nn.Linear(width, pixels)

    def forward(self, noisy, t):
        return self.out(self.mid(self.inp(noisy) + self.when(t)))


def seed_all(value: int):
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cfg = Config()
    # every rank draws its own noise and its own time steps
    local_seed = cfg.seed + 1000 * rank
    seed_all(local_seed)

    data = Glyphs(cfg)
    sampler = DistributedSampler(data, shuffle=True, seed=local_seed, drop_last=True)
    loader = DataLoader(data, batch_size=cfg.batch, sampler=sampler, drop_last=True)
    net = DDP(Denoiser(cfg.side ** 2, cfg.levels))
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    keep = torch.cos(torch.linspace(0.02, 1.5, cfg.levels))

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for clean in loader:
            t = torch.randint(cfg.levels, (clean.shape[0],))
            noise = torch.randn_like(clean)
            a = keep[t].unsqueeze(1)
            guess = net(a * clean + (1 - a ** 2).sqrt() * noise, t)
            loss = (guess - noise).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} mean loss {(total[0] / total[1]).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
