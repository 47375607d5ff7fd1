import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, ch=8, z=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, ch, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(ch, ch * 2, 3, 2, 1), nn.LeakyReLU(0.2),
        )
        self.structure = nn.Conv2d(ch * 2, 4, 1)
        self.texture = nn.Linear(ch * 2, z)

    def forward(self, x):
        h = self.net(x)
        return self.structure(h), self.texture(h.mean((2, 3)))


class Generator(nn.Module):
    def __init__(self, ch=8, z=12):
        super().__init__()
        self.affine = nn.Linear(z, ch * 2)
        self.inp = nn.Conv2d(4, ch * 2, 3, 1, 1)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(ch, 1, 3, 1, 1), nn.Tanh(),
        )

    def forward(self, structure, texture):
        h = self.inp(structure) * self.affine(texture)[:, :, None, None]
        return self.up(h)


class Discriminator(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, ch, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(ch, ch * 2, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(ch * 2 * 16, 1),
        )

    def forward(self, x):
        return self.net(x)
