from torch import nn


def generator(z, out):
    return nn.Sequential(nn.Linear(z, 64), nn.LayerNorm(64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, out))


def critic(inp):
    return nn.Sequential(nn.Linear(inp, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
