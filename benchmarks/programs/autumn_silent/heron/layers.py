import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from mappings import copy_to_region, reduce_from_region


def _master_weight(out_features, in_features):
    return torch.randn(out_features, in_features) / math.sqrt(in_features)


class ColumnParallelLinear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        full = _master_weight(out_features, in_features)
        self.weight = nn.Parameter(full.chunk(dist.get_world_size(), dim=0)[dist.get_rank()].clone())
        self.weight.tensor_parallel = True

    def forward(self, x):
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        full = _master_weight(out_features, in_features)
        self.weight = nn.Parameter(full.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].clone())
        self.weight.tensor_parallel = True
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return reduce_from_region(F.linear(x, self.weight)) + self.bias


class MultiQueryAttention(nn.Module):
    """Query heads are split over ranks, the single key/value head is kept on every rank."""

    def __init__(self, dim, heads):
        super().__init__()
        self.local_heads = heads // dist.get_world_size()
        self.head_dim = dim // heads
        self.q_proj = ColumnParallelLinear(dim, dim)
        self.kv_proj = nn.Linear(dim, 2 * self.head_dim, bias=False)
        with torch.no_grad():
            self.kv_proj.weight.copy_(_master_weight(2 * self.head_dim, dim))
        self.o_proj = RowParallelLinear(dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        region = copy_to_region(x)
        q = self.q_proj(region).view(b, t, self.local_heads, self.head_dim).transpose(1, 2)
        kv = self.kv_proj(region)
        k, v = kv.unsqueeze(1).expand(b, self.local_heads, t, 2 * self.head_dim).chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class ParallelMLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = ColumnParallelLinear(dim, 4 * dim)
        self.down = RowParallelLinear(4 * dim, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(copy_to_region(x))))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = MultiQueryAttention(dim, heads)
        self.mlp = ParallelMLP(dim)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))
