import torch
import torch.distributed as dist
from torch import nn


class Fanout(torch.autograd.Function):
    """Identity forward, sum over processes backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Fanin(torch.autograd.Function):
    """Sum over processes forward, identity backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class SplitMLP(nn.Module):
    """Column-parallel up projection followed by a row-parallel down projection."""

    def __init__(self, width, hidden, layer):
        super().__init__()
        part = hidden // dist.get_world_size()
        lo = dist.get_rank() * part
        gen = torch.Generator().manual_seed(9000 + layer)
        up = torch.randn(hidden, width, generator=gen) / width ** 0.5
        down = torch.randn(width, hidden, generator=gen) / hidden ** 0.5
        self.up = nn.Parameter(up[lo:lo + part].clone())
        self.down = nn.Parameter(down[:, lo:lo + part].clone())
        self.bias = nn.Parameter(torch.zeros(width))
        self.up.tp_sharded = self.down.tp_sharded = True

    def forward(self, x):
        h = torch.nn.functional.gelu(Fanout.apply(x) @ self.up.t())
        return Fanin.apply(h @ self.down.t()) + self.bias


def clip_gradients(params, limit):
    params = [p for p in params if p.grad is not None]
    total = torch.zeros((), dtype=torch.float64)
    for p in params:
        total += p.grad.double().square().sum()
    norm = total.sqrt().item()
    if norm > limit:
        for p in params:
            p.grad.mul_(limit / (norm + 1e-6))
    return norm
