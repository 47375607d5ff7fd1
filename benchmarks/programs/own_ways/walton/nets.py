import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, latent=8, width=64, out=2):
        super().__init__()
        self.latent = latent
        self.net = nn.Sequential(nn.Linear(latent, width), nn.LeakyReLU(0.2),
                                 nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, out))

    def forward(self, z):
        return self.net(z)

    def sample(self, n, generator=None):
        return self(torch.randn(n, self.latent, generator=generator))


class Critic(nn.Module):
    def __init__(self, width=64, dim=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, width), nn.LeakyReLU(0.2),
                                 nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)
