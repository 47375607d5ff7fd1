from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ModelArgs:
    vocab: int = 64
    dim: int = 64
    heads: int = 4
    layers: int = 2
    context: int = 32


class Attention(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.heads = a.heads
        self.qkv = nn.Linear(a.dim, 3 * a.dim, bias=False)
        self.proj = nn.Linear(a.dim, a.dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.attn = Attention(a)
        self.w1 = nn.Linear(a.dim, 2 * a.dim, bias=False)
        self.w2 = nn.Linear(2 * a.dim, a.dim, bias=False)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.w2(F.silu(self.w1(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.args = a
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Embedding(a.context, a.dim)
        self.layers = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
