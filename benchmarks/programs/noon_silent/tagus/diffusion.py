import math

import torch
import torch.nn as nn


class Schedule:
    def __init__(self, steps=100):
        beta = torch.linspace(1e-4, 0.05, steps)
        self.steps = steps
        self.beta = beta
        self.abar = torch.cumprod(1 - beta, 0)

    def add_noise(self, x, t, eps):
        a = self.abar[t].view(-1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * eps


class TimeEmbed(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freq", torch.exp(-math.log(1e4) * torch.arange(dim // 2) / (dim // 2)))
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t):
        ang = t[:, None].float() * self.freq
        return self.mlp(torch.cat([ang.sin(), ang.cos()], 1))


class ResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim * 2)
        self.fc2 = nn.Linear(dim * 2, dim)
        self.shift = nn.Linear(dim, dim * 2)

    def forward(self, x, emb):
        return x + self.fc2(nn.functional.silu(self.fc1(self.norm(x)) + self.shift(emb)))


class Denoiser(nn.Module):
    def __init__(self, data_dim, dim=192, depth=4):
        super().__init__()
        self.inp = nn.Linear(data_dim, dim)
        self.time = TimeEmbed(dim)
        self.blocks = nn.ModuleList(ResBlock(dim) for _ in range(depth))
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, data_dim))

    def forward(self, x, t):
        emb = self.time(t)
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, emb)
        return self.out(h)


@torch.no_grad()
def sample(model, schedule, n, dim, gen):
    x = torch.randn(n, dim, generator=gen)
    for i in reversed(range(schedule.steps)):
        t = torch.full((n,), i)
        eps = model(x, t)
        beta, abar = schedule.beta[i], schedule.abar[i]
        x = (x - beta / (1 - abar).sqrt() * eps) / (1 - beta).sqrt()
        if i:
            x = x + beta.sqrt() * torch.randn(n, dim, generator=gen)
    return x
