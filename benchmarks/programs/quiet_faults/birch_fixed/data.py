import torch
from torch.utils.data import Dataset


class Tiles(Dataset):
    """Small textured images, the class decides frequency and tint."""

    def __init__(self, n, classes=6, size=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(n) % classes
        grid = torch.linspace(0, 6.28, size)
        yy, xx = torch.meshgrid(grid, grid, indexing="ij")
        phase = torch.rand(n, generator=g) * 6.28
        freq = 1.0 + self.labels.float() * 0.5
        wave = torch.sin(freq[:, None, None] * xx + phase[:, None, None]) * torch.cos(freq[:, None, None] * yy)
        tint = torch.nn.functional.one_hot(self.labels % 3, 3).float()[:, :, None, None] * 0.3
        noise = torch.randn(n, 3, size, size, generator=g) * 0.6
        self.images = wave[:, None] + tint + noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]
