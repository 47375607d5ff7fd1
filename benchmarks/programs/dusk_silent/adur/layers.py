"""Tensor-parallel layers with the activations sharded along the sequence between them."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def _all_gather_seq(x, group):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=1)


def _reduce_scatter_seq(x, group):
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].contiguous()


class GatherFromSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _all_gather_seq(x, group)

    @staticmethod
    def backward(ctx, grad):
        return _reduce_scatter_seq(grad, ctx.group), None


class ScatterToSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _reduce_scatter_seq(x, group)

    @staticmethod
    def backward(ctx, grad):
        return _all_gather_seq(grad, ctx.group), None


class ColumnParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, group, chunks=1):
        super().__init__()
        self.group = group
        n, r = dist.get_world_size(group), dist.get_rank(group)
        full = torch.empty(out_features, in_features)
        nn.init.normal_(full, std=0.02)
        self.weight = nn.Parameter(torch.cat([c.chunk(n)[r] for c in full.chunk(chunks)]).clone())

    def forward(self, x):
        return F.linear(GatherFromSequence.apply(x, self.group), self.weight)


class RowParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, group):
        super().__init__()
        self.group = group
        full = torch.empty(out_features, in_features)
        nn.init.normal_(full, std=0.02)
        self.weight = nn.Parameter(full.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].clone())

    def forward(self, x):
        return ScatterToSequence.apply(F.linear(x, self.weight), self.group)


class ParallelLayer(nn.Module):
    def __init__(self, dim, heads, group):
        super().__init__()
        self.local_heads = heads // dist.get_world_size(group)
        self.head_dim = dim // heads
        self.input_norm = nn.LayerNorm(dim)
        self.qkv = ColumnParallelLinear(dim, 3 * dim, group, chunks=3)
        self.out = RowParallelLinear(dim, dim, group)
        self.post_norm = nn.LayerNorm(dim)
        self.up = ColumnParallelLinear(dim, 4 * dim, group)
        self.down = RowParallelLinear(4 * dim, dim, group)

    def forward(self, x):
        qkv = self.qkv(self.input_norm(x))
        b, t, _ = qkv.shape
        q, k, v = qkv.view(b, t, 3, self.local_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(att.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.post_norm(x))))
