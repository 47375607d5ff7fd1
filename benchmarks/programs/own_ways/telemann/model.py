import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tok = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.ch = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class Forecaster(nn.Module):
    """Patches of a series in, next patch out."""

    def __init__(self, patch=8, patches=6, width=48, depth=2):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, width)
        self.blocks = nn.ModuleList(Mixer(width, patches) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, patch)

    def forward(self, x):
        h = self.embed(x.unflatten(1, (-1, self.patch)))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


def series(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length)
    f = 0.1 + 0.3 * torch.rand(n, 2, 1, generator=g)
    p = 6.28 * torch.rand(n, 2, 1, generator=g)
    return torch.sin(f * t + p).sum(1) + 0.1 * torch.randn(n, length, generator=g)
