"""DDPM with a small residual MLP on 2-D mixtures, conditioned on a class."""
import math

import torch
import torch.nn as nn


class Denoiser(nn.Module):
    def __init__(self, classes: int, width: int = 96, depth: int = 3):
        super().__init__()
        self.inp = nn.Linear(2, width)
        self.cls = nn.Embedding(classes + 1, width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(depth))
        self.out = nn.Linear(width, 2)
        self.width, self.null = width, classes

    def embed_time(self, t):
        half = self.width // 2
        freq = torch.exp(-math.log(1000.0) * torch.arange(half) / half)
        ang = t[:, None].float() * freq
        return torch.cat([ang.sin(), ang.cos()], -1)

    def forward(self, x, t, c):
        h = self.inp(x)
        cond = self.time(self.embed_time(t)) + self.cls(c)
        for b in self.blocks:
            h = h + b(h + cond)
        return self.out(h)


class Schedule:
    def __init__(self, steps: int):
        beta = torch.linspace(1e-3, 0.12, steps)
        self.steps, self.beta = steps, beta
        self.abar = torch.cumprod(1 - beta, 0)

    def add_noise(self, x, eps, t):
        a = self.abar[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * eps

    @torch.no_grad()
    def sample(self, net, c, gen, guidance: float = 1.5):
        x = torch.randn(len(c), 2, generator=gen)
        null = torch.full_like(c, net.null)
        for i in reversed(range(self.steps)):
            t = torch.full((len(c),), i)
            eps = (1 + guidance) * net(x, t, c) - guidance * net(x, t, null)
            b, ab = self.beta[i], self.abar[i]
            x = (x - b / (1 - ab).sqrt() * eps) / (1 - b).sqrt()
            if i:
                x = x + b.sqrt() * torch.randn(x.shape, generator=gen)
        return x
