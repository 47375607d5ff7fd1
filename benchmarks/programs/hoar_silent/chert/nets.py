import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, z=8, width=64, out=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self, dim=2, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
                                 nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)
