from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from parallel import ColumnParallelLinear, RMSNorm, RowParallelLinear, tp_rank, tp_size


@dataclass
class GPTConfig:
    vocab: int = 64
    block: int = 32
    dim: int = 64
    heads: int = 4
    layers: int = 2


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.local_heads = cfg.heads // tp_size()
        self.head_dim = cfg.dim // cfg.heads
        self.qkv = ColumnParallelLinear(cfg.dim, 3 * cfg.dim, groups=3)
        self.proj = RowParallelLinear(cfg.dim, cfg.dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        b, t, _ = q.shape
        q, k, v = (z.view(b, t, self.local_heads, self.head_dim).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.up = ColumnParallelLinear(cfg.dim, 4 * cfg.dim)
        self.down = RowParallelLinear(4 * cfg.dim, cfg.dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1 = RMSNorm(cfg.dim)
        self.attn = Attention(cfg)
        self.norm2 = RMSNorm(cfg.dim)
        self.ffn = FeedForward(cfg)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class GPT(nn.Module):
    """The residual stream is kept split along the sequence on every rank."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.block, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = RMSNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def local_slice(self, ids):
        return ids.chunk(tp_size(), dim=1)[tp_rank()]

    def forward(self, ids, targets):
        positions = torch.arange(ids.size(1)).unsqueeze(0).expand_as(ids)
        x = self.tok(self.local_slice(ids)) + self.pos(self.local_slice(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        local_targets = self.local_slice(targets)
        loss_sum = F.cross_entropy(logits.flatten(0, 1), local_targets.flatten(), reduction="sum")
        return loss_sum / targets.numel()
