import math

import torch
from torch.utils.data import Dataset


class TideGauge(Dataset):
    """Windows of a synthetic tide record with the level one hour ahead as target."""

    def __init__(self, n=1536, window=24, seed=11):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(n + window + 1, dtype=torch.float32)
        level = (torch.sin(2 * math.pi * t / 12.42)
                 + 0.4 * torch.sin(2 * math.pi * t / 24.07 + 0.8))
        level = level + 0.05 * torch.randn(level.shape, generator=g)
        self.level = level
        self.window = window
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        w = self.level[i:i + self.window]
        return w, self.level[i + self.window].unsqueeze(0)
