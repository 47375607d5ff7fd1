import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from mappings import gather_sequence, reduce_scatter_sequence


def mark_sequence_parallel(module):
    for p in module.parameters(recurse=False):
        p.sequence_parallel = True
    return module


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6, sequence_parallel=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.weight.sequence_parallel = sequence_parallel
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def shard_linear(full, dim):
    """Slice of a full weight that belongs to this process."""
    return nn.Parameter(full.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone())


class ParallelAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.local_heads = heads // dist.get_world_size()
        self.head_dim = dim // heads
        q, k, v = (torch.randn(dim, dim) * 0.02 for _ in range(3))
        self.wq, self.wk, self.wv = shard_linear(q, 0), shard_linear(k, 0), shard_linear(v, 0)
        self.wo = shard_linear(torch.randn(dim, dim) * 0.02, 1)

    def forward(self, x):
        x = gather_sequence(x)
        b, t, _ = x.shape
        split = lambda w: F.linear(x, w).view(b, t, self.local_heads, self.head_dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(self.wq), split(self.wk), split(self.wv), is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, -1)
        return reduce_scatter_sequence(F.linear(y, self.wo))


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = shard_linear(torch.randn(hidden, dim) * 0.02, 0)
        self.w2 = shard_linear(torch.randn(dim, hidden) * 0.02, 1)

    def forward(self, x):
        return reduce_scatter_sequence(F.linear(F.gelu(F.linear(gather_sequence(x), self.w1)), self.w2))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn = RMSNorm(dim), ParallelAttention(dim, heads)
        self.norm2, self.mlp = RMSNorm(dim), ParallelMLP(dim, dim * 4)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab, seq_len, dim=128, heads=4, depth=3):
        super().__init__()
        self.chunk = seq_len // dist.get_world_size()
        self.tok = mark_sequence_parallel(nn.Embedding(vocab, dim))
        self.pos = mark_sequence_parallel(nn.Embedding(seq_len, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = RMSNorm(dim)
        self.head = mark_sequence_parallel(nn.Linear(dim, vocab, bias=False))

    def forward(self, ids, labels):
        lo = dist.get_rank() * self.chunk
        sl = slice(lo, lo + self.chunk)
        x = self.tok(ids[:, sl]) + self.pos(torch.arange(lo, lo + self.chunk))
        for blk in self.blocks:
            x = blk(x)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, sl].flatten(), reduction="sum")
        return loss / labels.numel()
