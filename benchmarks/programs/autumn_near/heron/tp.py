import torch
import torch.distributed as dist
import torch.nn as nn


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class HeadSplitAttention(nn.Module):
    """Each rank owns heads/world heads, with a temperature, a query norm and a distance bias for each head."""

    def __init__(self, dim, heads, span):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        self.h, self.hd = heads // world, dim // heads
        part = slice(rank * self.h * self.hd, (rank + 1) * self.h * self.hd)
        qkv, out = torch.randn(3, dim, dim) / dim ** 0.5, torch.randn(dim, dim) / dim ** 0.5
        self.qkv = nn.Parameter(qkv[:, part].clone())
        self.out = nn.Parameter(out[part].clone())
        self.out_bias = nn.Parameter(torch.zeros(dim))
        self.temperature = nn.Parameter(torch.ones(self.h, 1, 1))
        self.distance = nn.Parameter(torch.zeros(self.h, 2 * span - 1))
        self.q_scale = nn.Parameter(torch.ones(self.h, 1, self.hd))
        i = torch.arange(span)
        self.register_buffer("offset", i[:, None] - i[None] + span - 1)

    def forward(self, x):
        b, t, _ = x.shape
        x = Enter.apply(x)
        q, k, v = torch.einsum("btd,ned->nbte", x, self.qkv).view(3, b, t, self.h, self.hd).transpose(2, 3)
        q = nn.functional.normalize(q, dim=-1) * self.q_scale * self.hd ** 0.5
        att = (q @ k.transpose(-1, -2)) * self.temperature / self.hd ** 0.5 + self.distance[:, self.offset]
        y = (att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1)
        return Leave.apply(y @ self.out) + self.out_bias


class SplitMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        n = hidden // world
        up, down = torch.randn(hidden, dim) / dim ** 0.5, torch.randn(hidden, dim) / hidden ** 0.5
        self.up = nn.Parameter(up[rank * n:(rank + 1) * n].clone())
        self.up_bias = nn.Parameter(torch.zeros(n))
        self.gain = nn.Parameter(torch.ones(n))
        self.down = nn.Parameter(down[rank * n:(rank + 1) * n].clone())
        self.down_bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = nn.functional.gelu(Enter.apply(x) @ self.up.t() + self.up_bias) * self.gain
        return Leave.apply(h @ self.down) + self.down_bias
