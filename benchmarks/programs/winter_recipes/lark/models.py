import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half) / half)
    a = t.float()[:, None] * freqs
    return torch.cat([a.cos(), a.sin()], -1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        nn.init.zeros_(self.ada[1].weight)
        nn.init.zeros_(self.ada[1].bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + s1) + b1
        x = x + g1 * self.attn(h, h, h, need_weights=False)[0]
        h = self.norm2(x) * (1 + s2) + b2
        return x + g2 * self.mlp(h)


class DiT(nn.Module):
    def __init__(self, channels=4, size=16, patch=2, dim=64, depth=2, heads=4, classes=8):
        super().__init__()
        self.dim = dim
        self.patch = patch
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(classes + 1, dim)
        self.blocks = nn.ModuleList(DiTBlock(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, channels * patch * patch)

    def forward(self, x, t, y):
        c = self.time(timestep_embedding(t, self.dim)) + self.label(y)
        h = self.embed(x)
        gh, gw = h.shape[-2:]
        h = h.flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            h = block(h, c)
        h = self.head(h).transpose(1, 2).view(x.size(0), -1, gh, gw)
        return F.pixel_shuffle(h, self.patch)


class GaussianDiffusion:
    def __init__(self, steps=1000):
        self.steps = steps
        betas = torch.linspace(1e-4, 0.02, steps)
        self.alpha_bar = torch.cumprod(1 - betas, 0)

    def training_loss(self, model, x0, y, t, noise):
        a = self.alpha_bar[t][:, None, None, None]
        return F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t, y), noise)
