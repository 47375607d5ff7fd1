from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from parallel import (ColumnParallelLinear, LayerNorm, RowParallelLinear, gather_replicated,
                      split_sequence, tp_size)


@dataclass
class ModelConfig:
    vocab: int = 64
    seq: int = 32
    dim: int = 64
    heads: int = 4
    layers: int = 3


class ParallelAttention(nn.Module):
    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.local_heads = cfg.heads // tp_size()
        self.head_dim = cfg.dim // cfg.heads
        self.qkv = ColumnParallelLinear(cfg.dim, 3 * cfg.dim, stride=3)
        self.proj = RowParallelLinear(cfg.dim, cfg.dim)

    def forward(self, x):
        qkv = self.qkv(x)
        s, b, _ = qkv.shape
        q, k, v = qkv.view(s, b, 3, self.local_heads, self.head_dim).permute(2, 1, 3, 0, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.permute(2, 0, 1, 3).reshape(s, b, -1))


class ParallelMLP(nn.Module):
    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.up = ColumnParallelLinear(cfg.dim, 4 * cfg.dim)
        self.down = RowParallelLinear(4 * cfg.dim, cfg.dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class TransformerLayer(nn.Module):
    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.input_norm = LayerNorm(cfg.dim, sequence_parallel=True)
        self.attention = ParallelAttention(cfg)
        self.post_norm = LayerNorm(cfg.dim, sequence_parallel=True)
        self.mlp = ParallelMLP(cfg)

    def forward(self, x):
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class TransformerBlock(nn.Module):
    def __init__(self, cfg: ModelConfig, post_process: bool = True):
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(cfg) for _ in range(cfg.layers))
        self.final_norm = LayerNorm(cfg.dim, sequence_parallel=True) if post_process else None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.final_norm(x) if self.final_norm is not None else x


class ParallelGPT(nn.Module):
    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.seq, cfg.dim)
        self.block = TransformerBlock(cfg)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        h = split_sequence(h.transpose(0, 1).contiguous())
        h = gather_replicated(self.block(h))
        return self.head(h.transpose(0, 1))
