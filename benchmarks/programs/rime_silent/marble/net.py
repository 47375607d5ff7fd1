import torch
import torch.nn as nn
import torch.nn.functional as F

from grid import make_ops


class ShardedMLP(nn.Module):
    """First matrix split by rows of the output, second by columns of the input."""

    def __init__(self, dim, hidden, grid, gen):
        super().__init__()
        up = torch.randn(hidden, dim, generator=gen) * dim ** -0.5
        down = torch.randn(dim, hidden, generator=gen) * hidden ** -0.5
        self.up = nn.Parameter(up.chunk(grid.tp, 0)[grid.tp_rank].clone())
        self.down = nn.Parameter(down.chunk(grid.tp, 1)[grid.tp_rank].clone())
        self.up_bias = nn.Parameter(torch.zeros(hidden // grid.tp))
        self.down_bias = nn.Parameter(torch.zeros(dim))
        self.copy_in, self.sum_out = make_ops(grid.tp_group)

    def forward(self, x):
        h = F.gelu(F.linear(self.copy_in(x), self.up, self.up_bias))
        return self.sum_out(F.linear(h, self.down)) + self.down_bias


class Net(nn.Module):
    def __init__(self, grid, gen, features=64, dim=96, hidden=384, depth=3, classes=12):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.mlps = nn.ModuleList(ShardedMLP(dim, hidden, grid, gen) for _ in range(depth))
        self.out = nn.Linear(dim, classes)
        with torch.no_grad():
            for lin in (self.inp, self.out):
                lin.weight.copy_(torch.randn(lin.weight.shape, generator=gen) * lin.in_features ** -0.5)
                lin.bias.zero_()

    def forward(self, x):
        h = self.inp(x)
        for norm, mlp in zip(self.norms, self.mlps):
            h = h + mlp(norm(h))
        return self.out(h)
