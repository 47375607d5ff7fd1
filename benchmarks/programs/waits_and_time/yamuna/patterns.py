import math

import torch
from torch.utils.data import Dataset


class StripeImages(Dataset):
    """Oriented gratings with noise; the class is the orientation."""

    def __init__(self, size, seed, side=20, classes=6):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, classes, (size,), generator=g)
        yy, xx = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        angle = self.labels.float() * math.pi / classes
        phase = torch.rand(size, generator=g) * 2 * math.pi
        wave = xx[None] * torch.cos(angle)[:, None, None] + yy[None] * torch.sin(angle)[:, None, None]
        self.images = torch.sin(wave * 0.9 + phase[:, None, None])[:, None]
        self.images = self.images + 0.6 * torch.randn(self.images.shape, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]
