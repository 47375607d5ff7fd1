"""Small denoising diffusion model on a two-dimensional spiral, trained with DDP."""
import argparse
import math
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def spiral(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    a = 1.5 * math.pi * (1 + 2 * torch.rand(n, generator=g))
    pts = torch.stack([a * a.cos(), a * a.sin()], 1) / 8
    return pts + 0.03 * torch.randn(n, 2, generator=g)


class Denoiser(nn.Module):
    def __init__(self, width=128, freqs=16):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, 5, freqs)))
        self.inp = nn.Linear(2 + 2 * freqs, width)
        self.mid = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()) for _ in range(3))
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        ang = t[:, None] * self.freqs
        h = self.inp(torch.cat([x, ang.sin(), ang.cos()], 1))
        for layer in self.mid:
            h = h + layer(h)
        return self.out(h)


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


def diffusion_loss(model, x0):
    t = torch.rand(x0.size(0))
    noise = torch.randn_like(x0)
    alpha = torch.cos(0.5 * math.pi * t)[:, None]
    sigma = torch.sin(0.5 * math.pi * t)[:, None]
    return (model(alpha * x0 + sigma * noise, t) - noise).pow(2).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=42)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    set_seed(args.seed)

    data = TensorDataset(spiral(12000))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(Denoiser())
    ema = Ema(model.module, 0.995)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for (x0,) in loader:
            loss = diffusion_loss(model, x0)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            ema.update(model.module)
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / (world * len(loader)):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
