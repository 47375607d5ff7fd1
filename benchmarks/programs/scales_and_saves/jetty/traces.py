import torch
from torch.utils.data import Dataset


class SeismicTraces(Dataset):
    """Three kinds of synthetic arrivals in noise: P-like, S-like, none."""

    def __init__(self, n, length=128, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length).float()
        self.y = torch.randint(0, 3, (n,), generator=g)
        onset = torch.randint(20, length - 40, (n, 1), generator=g).float()
        freq = torch.tensor([0.45, 0.18, 0.0])[self.y][:, None]
        amp = torch.tensor([1.2, 2.0, 0.0])[self.y][:, None]
        dt = (t - onset).clamp_min(0)
        self.x = amp * torch.exp(-dt / 15) * torch.sin(freq * dt * 3) * (dt > 0)
        self.x = (self.x + torch.randn(n, length, generator=g) * 0.5)[:, None]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
