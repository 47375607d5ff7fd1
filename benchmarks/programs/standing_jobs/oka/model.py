import torch.nn as nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(),
                               nn.Linear(width, width))

    def forward(self, x):
        return x + self.f(x)


def build(features, width, depth):
    return nn.Sequential(nn.Linear(features, width), *[Residual(width) for _ in range(depth)],
                         nn.Linear(width, 1))
