import torch
import torch.distributed as dist
import torch.nn as nn


def _gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def _scatter_sum(x):
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


class GatherSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _gather(x)

    @staticmethod
    def backward(ctx, g):
        return _scatter_sum(g)


class ScatterSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _scatter_sum(x)

    @staticmethod
    def backward(ctx, g):
        return _gather(g)


def on_sequence(module):
    """Marks replicated parameters that see only this rank's part of the sequence."""
    for p in module.parameters():
        p.sequence_parallel = True
    return module


class ColumnLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        full = torch.randn(d_out, d_in) / d_in ** 0.5
        self.weight = nn.Parameter(full.chunk(world)[rank].clone())
        self.bias = nn.Parameter(torch.zeros(d_out // world))

    def forward(self, x):
        return nn.functional.linear(GatherSeq.apply(x), self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        full = torch.randn(d_out, d_in) / d_in ** 0.5
        self.weight = nn.Parameter(full.chunk(world, 1)[rank].clone())
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x):
        return ScatterSeq.apply(nn.functional.linear(x, self.weight)) + self.bias
