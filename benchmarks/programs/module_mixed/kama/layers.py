"""Tensor-parallel attention block: heads are split over the tp group."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _CopyToRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class HeadNorm(nn.Module):
    """RMS norm over the head dimension, applied to q and to k."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class ParallelAttention(nn.Module):
    def __init__(self, d, heads, tp_group):
        super().__init__()
        tp = dist.get_world_size(tp_group)
        self.group, self.local_heads, self.hd = tp_group, heads // tp, d // heads
        width = self.local_heads * self.hd
        full = torch.randn(3, d, d) / d ** 0.5
        lo = dist.get_rank(tp_group) * width
        self.qkv = nn.Parameter(full[:, lo:lo + width].reshape(3 * width, d).clone())
        self.proj = nn.Parameter((torch.randn(d, d) / d ** 0.5)[:, lo:lo + width].clone())
        self.qkv.tensor_parallel = self.proj.tensor_parallel = True
        self.q_norm, self.k_norm = HeadNorm(self.hd), HeadNorm(self.hd)

    def forward(self, x):
        b, t, _ = x.shape
        x = _CopyToRegion.apply(x, self.group)
        q, k, v = F.linear(x, self.qkv).view(b, t, 3, self.local_heads, self.hd).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        o = o.transpose(1, 2).reshape(b, t, -1)
        return _ReduceFromRegion.apply(F.linear(o, self.proj), self.group)


class ParallelLM(nn.Module):
    def __init__(self, vocab, d, heads, depth, tp_group):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.attn = nn.ModuleList(ParallelAttention(d, heads, tp_group) for _ in range(depth))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.tok(ids)
        for ln, attn in zip(self.ln, self.attn):
            h = h + attn(ln(h))
        return self.head(h)
