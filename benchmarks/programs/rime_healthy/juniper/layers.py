"""Megatron-like column/row parallel linears."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(g)
        return g


class _SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def _shard(full, dim):
    return full.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


class ColumnLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        ref = nn.Linear(i, o)
        self.weight = nn.Parameter(_shard(ref.weight.data, 0))
        self.bias = nn.Parameter(_shard(ref.bias.data, 0))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        ref = nn.Linear(i, o)
        self.weight = nn.Parameter(_shard(ref.weight.data, 1))
        self.bias = nn.Parameter(ref.bias.data)

    def forward(self, x):
        return _SumOut.apply(F.linear(x, self.weight)) + self.bias


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.world = dist.get_world_size()
        assert heads % self.world == 0
        self.heads, self.hd = heads // self.world, dim // heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v = ColumnLinear(dim, dim), ColumnLinear(dim, dim), ColumnLinear(dim, dim)
        self.o = RowLinear(dim, dim)
        self.up, self.down = ColumnLinear(dim, 4 * dim), RowLinear(4 * dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        h = _CopyIn.apply(self.n1(x))
        q, k, v = (m(h).view(b, t, self.heads, self.hd).transpose(1, 2) for m in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + self.o(a)
        return x + self.down(F.gelu(self.up(_CopyIn.apply(self.n2(x)))))
