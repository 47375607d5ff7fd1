import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.mlp(self.n2(x))


class Stage(nn.Module):
    """One slice of the decoder. The word table is used by the first and by the last slice."""

    def __init__(self, index, count, cfg):
        super().__init__()
        self.first, self.last = index == 0, index == count - 1
        table = torch.randn(cfg.vocab, cfg.dim, generator=torch.Generator().manual_seed(cfg.seed)) * 0.02
        if self.first or self.last:
            self.word = nn.Parameter(table)
        if self.first:
            self.pos = nn.Parameter(torch.zeros(cfg.seq_len, cfg.dim))
        self.blocks = nn.ModuleList(Block(cfg.dim, cfg.heads) for _ in range(cfg.layers[index]))
        if self.last:
            self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, x):
        if self.first:
            x = F.embedding(x, self.word) + self.pos
        for b in self.blocks:
            x = b(x)
        if self.last:
            x = F.linear(self.norm(x), self.word)
        return x
