import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Denoiser(nn.Module):
    def __init__(self, classes=6, width=24, emb=32):
        super().__init__()
        self.cls = nn.Embedding(classes, emb)
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(1, width, 3, padding=1)
        self.film = nn.ModuleList([nn.Linear(emb, 2 * width) for _ in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])
        self.out = nn.Conv2d(width, 1, 3, padding=1)
        self.emb = emb

    def forward(self, x, t, y):
        freq = torch.exp(-math.log(1000) * torch.arange(self.emb // 2) / (self.emb // 2))
        a = t.float().unsqueeze(1) * freq
        e = self.time(torch.cat([a.sin(), a.cos()], 1)) + self.cls(y)
        h = self.inp(x)
        for film, conv in zip(self.film, self.convs):
            scale, shift = film(e)[:, :, None, None].chunk(2, 1)
            h = h + conv(F.silu(h * (1 + scale) + shift))
        return self.out(F.silu(h))


class Schedule:
    def __init__(self, steps=200):
        t = torch.linspace(0, 1, steps + 1)
        f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        self.abar = (f / f[0])[1:].clamp(min=1e-4)
        self.steps = steps

    def loss(self, model, x0, y):
        t = torch.randint(self.steps, (len(x0),))
        eps = torch.randn_like(x0)
        a = self.abar[t].view(-1, 1, 1, 1)
        return F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * eps, t, y), eps)
