import torch
from torch import nn
from torch.utils.data import Dataset


class Signals(Dataset):
    """Pairs of clean and degraded one-dimensional signals."""

    def __init__(self, n, length=48, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length)
        freq = 0.2 + 0.5 * torch.rand(n, 3, 1, generator=g)
        phase = 6.28 * torch.rand(n, 3, 1, generator=g)
        amp = torch.rand(n, 3, 1, generator=g)
        self.clean = (amp * torch.sin(freq * t + phase)).sum(1, keepdim=True)
        smooth = torch.nn.functional.avg_pool1d(self.clean, 5, 1, 2)
        self.poor = smooth + 0.15 * torch.randn(smooth.shape, generator=g)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        return self.poor[i], self.clean[i]


class Restorer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, width, 7, padding=3), nn.GELU(),
                                 nn.Conv1d(width, width, 5, padding=2), nn.GELU(),
                                 nn.Conv1d(width, 1, 5, padding=2))

    def forward(self, x):
        return x + self.net(x)


class Judge(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(2, width, 7, stride=2, padding=3), nn.LeakyReLU(0.2),
                                 nn.Conv1d(width, width, 5, stride=2, padding=2), nn.LeakyReLU(0.2),
                                 nn.Flatten(), nn.Linear(12 * width, 1))

    def forward(self, poor, signal):
        return self.net(torch.cat([poor, signal], 1)).squeeze(1)
