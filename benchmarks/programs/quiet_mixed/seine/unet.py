import torch
from torch import nn


class SmallUNet(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.GroupNorm(2, c), nn.SiLU())
        self.down = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.mid = nn.Sequential(nn.SiLU(), nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.SiLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.out = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x):
        a = self.a(x)
        return self.out(torch.cat([a, self.up(self.mid(self.down(a)))], 1))
