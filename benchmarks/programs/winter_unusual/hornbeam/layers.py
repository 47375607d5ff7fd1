import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def _full(out_f, in_f):
    w = torch.empty(out_f, in_f)
    nn.init.normal_(w, std=in_f ** -0.5)
    return w


class ColumnLinear(nn.Module):
    def __init__(self, in_f, out_f, groups=1):
        super().__init__()
        r, w = dist.get_rank(), dist.get_world_size()
        full = _full(out_f, in_f).view(groups, out_f // groups, in_f)
        self.weight = nn.Parameter(full.chunk(w, dim=1)[r].reshape(-1, in_f).clone())
        self.bias = nn.Parameter(torch.zeros(out_f // w))
        self.weight.sharded = self.bias.sharded = True

    def forward(self, x):
        return F.linear(_Copy.apply(x), self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, in_f, out_f):
        super().__init__()
        r, w = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(_full(out_f, in_f).chunk(w, dim=1)[r].clone())
        self.bias = nn.Parameter(torch.zeros(out_f))
        self.weight.sharded = True

    def forward(self, x):
        return _Reduce.apply(F.linear(x, self.weight)) + self.bias


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads // dist.get_world_size()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = ColumnLinear(dim, 3 * dim, groups=3), RowLinear(dim, dim)
        self.up, self.down = ColumnLinear(dim, 4 * dim), RowLinear(4 * dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + self.proj(a)
        return x + self.down(F.gelu(self.up(self.n2(x))))


@torch.no_grad()
def clip_(params, max_norm):
    shard = sum(p.grad.square().sum() for p in params if getattr(p, "sharded", False))
    dist.all_reduce(shard)
    common = sum(p.grad.square().sum() for p in params if not getattr(p, "sharded", False))
    norm = (shard + common).sqrt()
    torch._foreach_mul_([p.grad for p in params], (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
