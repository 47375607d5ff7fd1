import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.LayerNorm(h), nn.ReLU(), nn.Linear(h, o))


class Encoder(nn.Module):
    def __init__(self, width=32, proj=64):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.projector = mlp(8 * width, 128, proj)

    def forward(self, x):
        return self.projector(self.trunk(x))


class Online(nn.Module):
    def __init__(self, proj=64):
        super().__init__()
        self.encoder = Encoder(proj=proj)
        self.predictor = mlp(proj, 128, proj)

    def forward(self, a, b):
        both = self.predictor(self.encoder(torch.cat([a, b])))
        return both.chunk(2)


class Momentum:
    """Slow copy of an encoder."""

    def __init__(self, encoder, tau):
        self.net = copy.deepcopy(encoder).requires_grad_(False)
        self.tau = tau

    @torch.no_grad()
    def update(self, encoder):
        for t, o in zip(self.net.parameters(), encoder.parameters()):
            t.lerp_(o, 1 - self.tau)

    @torch.no_grad()
    def __call__(self, x):
        return self.net(x)


def regression_loss(p, z):
    return 2 - 2 * F.cosine_similarity(p, z, dim=-1).mean()
