import torch
from torch import nn


def make_bank(n=4000, dim=12):
    g = torch.Generator().manual_seed(15)
    x = torch.randn(n, dim, generator=g)
    y = torch.sin(x[:, :1] * 2) + x[:, 1:2] * x[:, 2:3] + 0.1 * torch.randn(n, 1, generator=g)
    return x, y


class GlobalBatches:
    """Batch `step` is the same set of rows whatever the number of ranks; each rank takes its part of it."""

    def __init__(self, bank, size, rank, world):
        assert size % world == 0
        self.x, self.y = bank
        self.size, self.rank, self.world = size, rank, world

    def __getitem__(self, step):
        per_epoch = len(self.x) // self.size
        epoch, k = divmod(step, per_epoch)
        g = torch.Generator().manual_seed(7000 + epoch)
        order = torch.randperm(len(self.x), generator=g)
        rows = order[k * self.size:(k + 1) * self.size][self.rank::self.world]
        return self.x[rows], self.y[rows]


class Regressor(nn.Module):
    def __init__(self, dim=12, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)
