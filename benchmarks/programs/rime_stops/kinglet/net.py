import torch
import torch.nn as nn


class DropBlocks(nn.Module):
    """Residual MLP that leaves out whole blocks at random while training.

    The coin flips come from a private generator, seeded the same on every worker.
    """

    def __init__(self, dim_in, classes, dim=192, depth=6, keep=0.75, seed=0):
        super().__init__()
        self.inp = nn.Linear(dim_in, dim)
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            for _ in range(depth)
        ])
        self.out = nn.Linear(dim, classes)
        self.keep = keep
        self.coin = torch.Generator().manual_seed(seed)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            if not self.training:
                h = h + self.keep * block(h)
            elif torch.rand((), generator=self.coin).item() < self.keep:
                h = h + block(h)
        return self.out(h)
