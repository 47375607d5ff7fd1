import torch
import torch.nn as nn


class Surrogate(nn.Module):
    """Learns to jump over one output interval of the solver."""

    def __init__(self, ch=6):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, ch, 3, padding=1), nn.GELU(), nn.Conv2d(ch, 1, 3, padding=1))

    def forward(self, field):
        x = field[None, None]
        return (x + self.net(x))[0, 0]


def flow_field(rank, world, rows, cols):
    """Background velocity of the strip; the jet sits at about 60 % of the domain."""
    y = (torch.arange(rows).float() + rank * rows) / (rows * world)
    jet = 0.4 + 0.5 * torch.exp(-((y - 0.6) / 0.05) ** 2)
    return jet[:, None].expand(rows, cols).contiguous()
