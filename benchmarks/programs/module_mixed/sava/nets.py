import torch
import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, z=12, d=48, out=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, d), nn.LeakyReLU(0.2), nn.Linear(d, d), nn.LeakyReLU(0.2), nn.Linear(d, out))

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self, d=48, inp=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inp, d), nn.LeakyReLU(0.2), nn.Linear(d, d), nn.LeakyReLU(0.2), nn.Linear(d, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


class Shapes:
    """Sine segments with random phase; what the generator should imitate."""

    def __init__(self, seed, n=20):
        self.g = torch.Generator().manual_seed(seed)
        self.t = torch.linspace(0, 6.283, n)

    def real(self, b):
        phase = torch.rand(b, 1, generator=self.g) * 6.283
        return torch.sin(self.t + phase) + 0.05 * torch.randn(b, len(self.t), generator=self.g)

    def noise(self, b, z=12):
        return torch.randn(b, z, generator=self.g)
