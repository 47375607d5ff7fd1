import torch
from torch.utils.data import Dataset


class SensorDataset(Dataset):
    """Multichannel windows, target is a smooth functional of the window."""

    def __init__(self, size, channels=4, length=32, seed=0):
        gen = torch.Generator().manual_seed(77)
        self.mix = torch.randn(channels, generator=gen)
        gen = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, channels, length, generator=gen).cumsum(-1) / length ** 0.5
        slope = self.x[..., -1] - self.x[..., 0]
        energy = self.x.pow(2).mean((1, 2))
        self.targets = slope @ self.mix + energy + 0.1 * torch.randn(size, generator=gen)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return self.x[i], self.targets[i]
