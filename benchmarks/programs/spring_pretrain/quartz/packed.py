from functools import lru_cache

import torch
import torch.nn as nn
import torch.nn.functional as F


@lru_cache(maxsize=None)
def block_causal_bias(cu_seqlens, total, dtype):
    """Additive attention bias for one packed row; shared by all layers of a forward."""
    seg = torch.zeros(total, dtype=torch.long)
    for i in range(len(cu_seqlens) - 1):
        seg[cu_seqlens[i]:cu_seqlens[i + 1]] = i
    same = seg.unsqueeze(0) == seg.unsqueeze(1)
    keep = same & torch.ones(total, total, dtype=torch.bool).tril()
    return torch.zeros(total, total, dtype=dtype).masked_fill_(~keep, float("-inf"))


class PackedAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cu_seqlens):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = block_causal_bias(cu_seqlens, t, x.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class PackedLM(nn.Module):
    def __init__(self, vocab, dim, heads, layers, max_doc):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_doc, dim)
        self.n1 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.attn = nn.ModuleList(PackedAttention(dim, heads) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(),
                                               nn.Linear(2 * dim, dim)) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens, positions, cu_seqlens):
        x = self.tok(tokens) + self.pos(positions)
        for n1, attn, mlp in zip(self.n1, self.attn, self.mlp):
            x = x + attn(n1(x), cu_seqlens)
            x = x + mlp(x)
        return self.head(self.norm(x))
