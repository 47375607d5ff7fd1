import torch
from torch import nn


class SeriesTask:
    """Windows of a noisy two-tone series; a batch depends only on the step and the rank."""

    def __init__(self, seed, length=6000, context=24):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length).float()
        self.series = torch.sin(t / 5) + 0.6 * torch.sin(t / 1.7) + 0.1 * torch.randn(length, generator=g)
        self.context = context
        self.starts = torch.randperm(length - context - 1, generator=g)

    def batch(self, step, rank, world, size):
        lo = (step * world + rank) * size
        rows = self.starts[torch.arange(lo, lo + size) % len(self.starts)]
        idx = rows[:, None] + torch.arange(self.context + 1)[None]
        win = self.series[idx]
        return win[:, :-1], win[:, -1:]


class Forecaster(nn.Module):
    def __init__(self, context, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(context, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)
