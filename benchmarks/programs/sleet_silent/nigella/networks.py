import torch
import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, z=16, c=32):
        super().__init__()
        self.z = z
        self.net = nn.Sequential(
            nn.Linear(z, c * 16), nn.Unflatten(1, (c, 4, 4)), nn.ReLU(),
            nn.ConvTranspose2d(c, c // 2, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(c // 2, 1, 4, 2, 1), nn.Tanh())

    def forward(self, n_or_z):
        return self.net(n_or_z)


class Critic(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, c, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(c, 2 * c, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
            nn.Linear(2 * c * 16, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def rings(n, gen):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    r = 0.3 + 0.5 * torch.rand(n, 1, 1, generator=gen)
    cx, cy = (torch.rand(2, n, 1, 1, generator=gen) - 0.5) * 0.4
    d = ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt()
    return (2 * torch.exp(-((d - r) / 0.12) ** 2) - 1).unsqueeze(1)
