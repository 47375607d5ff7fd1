import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _CopyToRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class _ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class _GatherFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.width = x.shape[-1]
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, grad):
        lo = dist.get_rank() * ctx.width
        return grad[..., lo:lo + ctx.width].contiguous()


class VocabParallelEmbedding(nn.Module):
    """Rows [lo, hi) of the token table; also used as the output projection."""

    def __init__(self, vocab, dim, rank, world, generator):
        super().__init__()
        self.rows = vocab // world
        self.lo = rank * self.rows
        self.weight = nn.Parameter(torch.randn(self.rows, dim, generator=generator) * 0.02)

    def forward(self, ids):
        local = ids - self.lo
        outside = (local < 0) | (local >= self.rows)
        x = F.embedding(local.masked_fill(outside, 0), self.weight)
        return _ReduceFromRegion.apply(x.masked_fill(outside.unsqueeze(-1), 0.0))

    def logits(self, x):
        return _GatherFromRegion.apply(_CopyToRegion.apply(x) @ self.weight.t())


class ColumnParallelLinear(nn.Module):
    def __init__(self, d_in, d_out, world, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out // world, d_in, generator=generator) / math.sqrt(d_in))
        self.bias = nn.Parameter(torch.zeros(d_out // world))

    def forward(self, x):
        return F.linear(_CopyToRegion.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    def __init__(self, d_in, d_out, world, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in // world, generator=generator) / math.sqrt(d_in))
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x):
        return _ReduceFromRegion.apply(F.linear(x, self.weight)) + self.bias


class ParallelAttention(nn.Module):
    def __init__(self, dim, heads, world, generator):
        super().__init__()
        self.heads = heads // world
        self.q = ColumnParallelLinear(dim, dim, world, generator)
        self.k = ColumnParallelLinear(dim, dim, world, generator)
        self.v = ColumnParallelLinear(dim, dim, world, generator)
        self.out = RowParallelLinear(dim, dim, world, generator)

    def forward(self, x):
        b, t, _ = x.shape
        split = lambda y: y.view(b, t, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class ParallelBlock(nn.Module):
    def __init__(self, dim, heads, world, generator):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.ln2 = nn.LayerNorm(dim)
        self.attn = ParallelAttention(dim, heads, world, generator)
        self.up = ColumnParallelLinear(dim, 4 * dim, world, generator)
        self.down = RowParallelLinear(4 * dim, dim, world, generator)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class ParallelLM(nn.Module):
    def __init__(self, vocab, dim, depth, heads, seq, rank, world, seed):
        super().__init__()
        shared = torch.Generator().manual_seed(seed)
        local = torch.Generator().manual_seed(seed + 1 + rank)
        self.tok = VocabParallelEmbedding(vocab, dim, rank, world, local)
        self.pos = nn.Parameter(torch.randn(seq, dim, generator=shared) * 0.02)
        self.blocks = nn.ModuleList(ParallelBlock(dim, heads, world, local) for _ in range(depth))
        self.ln = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.tok.logits(self.ln(x))
