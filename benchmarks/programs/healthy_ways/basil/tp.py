"""Column and row parallel layers built on two small autograd functions."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Enter(torch.autograd.Function):
    """Identity on the way in, summed over the group on the way back."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    """Summed over the group on the way in, identity on the way back."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def full_weight(out_features, in_features, gen):
    return torch.randn(out_features, in_features, generator=gen) * (in_features ** -0.5)


class ColumnParallel(nn.Module):
    def __init__(self, fan_in, fan_out, group, gen, parts=1):
        super().__init__()
        self.group = group
        w, r = dist.get_world_size(group), dist.get_rank(group)
        blocks = full_weight(fan_out, fan_in, gen).chunk(parts)
        self.weight = nn.Parameter(torch.cat([b.chunk(w)[r] for b in blocks]).contiguous())
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[0]))
        self.weight.sharded = self.bias.sharded = True

    def forward(self, x):
        return F.linear(Enter.apply(x, self.group), self.weight, self.bias)


class RowParallel(nn.Module):
    def __init__(self, fan_in, fan_out, group, gen):
        super().__init__()
        self.group = group
        w, r = dist.get_world_size(group), dist.get_rank(group)
        self.weight = nn.Parameter(full_weight(fan_out, fan_in, gen).chunk(w, dim=1)[r].contiguous())
        self.bias = nn.Parameter(torch.zeros(fan_out))
        self.weight.sharded = True

    def forward(self, x):
        return Leave.apply(F.linear(x, self.weight), self.group) + self.bias


class ParallelAttention(nn.Module):
    def __init__(self, dim, heads, group, gen):
        super().__init__()
        self.local_heads = heads // dist.get_world_size(group)
        self.head_dim = dim // heads
        self.qkv = ColumnParallel(dim, 3 * dim, group, gen, parts=3)
        self.out = RowParallel(dim, dim, group, gen)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, self.local_heads, self.head_dim).transpose(1, 2)
                   for z in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden, group, gen):
        super().__init__()
        self.up = ColumnParallel(dim, hidden, group, gen)
        self.down = RowParallel(hidden, dim, group, gen)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))
