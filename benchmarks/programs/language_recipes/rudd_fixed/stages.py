from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class StageConfig:
    vocab: int = 48
    seq: int = 24
    dim: int = 48
    heads: int = 4
    layers: int = 6


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.heads = heads

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Stage(nn.Module):
    """A contiguous slice of layers; ends carry the (tied) token table."""

    def __init__(self, cfg: StageConfig, index: int, count: int, seed: int):
        super().__init__()
        per = cfg.layers // count
        self.first, self.last = index == 0, index == count - 1
        blocks = []
        for i in range(index * per, (index + 1) * per):
            torch.manual_seed(seed + 1 + i)
            blocks.append(Block(cfg.dim, cfg.heads))
        self.blocks = nn.ModuleList(blocks)
        if self.first or self.last:
            torch.manual_seed(seed)
            self.table = nn.Embedding(cfg.vocab, cfg.dim)
            nn.init.normal_(self.table.weight, std=0.05)
        if self.first:
            self.pos = nn.Parameter(torch.zeros(cfg.seq, cfg.dim))
        if self.last:
            self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, x):
        if self.first:
            x = self.table(x) + self.pos[: x.shape[1]]
        for b in self.blocks:
            x = b(x)
        if self.last:
            x = self.norm(x) @ self.table.weight.t()
        return x
