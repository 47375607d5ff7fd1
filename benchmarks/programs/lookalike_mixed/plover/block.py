import torch
import torch.nn as nn
import torch.nn.functional as F

from parallel import Enter, Leave, piece


class Block(nn.Module):
    def __init__(self, dim, heads, vocab, layout):
        super().__init__()
        self.layout, self.hd, self.local = layout, dim // heads, heads // layout.size
        self.emb = nn.Embedding(vocab, dim)
        self.ln = nn.LayerNorm(dim)
        self.wq = piece(torch.randn(dim, dim) / dim**0.5, layout, 0)
        self.wk = piece(torch.randn(dim, dim) / dim**0.5, layout, 0)
        self.wv = piece(torch.randn(dim, dim) / dim**0.5, layout, 0)
        self.wo = piece(torch.randn(dim, dim) / dim**0.5, layout, 1)
        self.q_norm, self.k_norm = nn.LayerNorm(self.hd), nn.LayerNorm(self.hd)
        self.out = nn.Linear(dim, vocab)

    def shared_inside(self):
        yield from self.q_norm.parameters()
        yield from self.k_norm.parameters()

    def heads(self, x, w):
        return F.linear(x, w).unflatten(-1, (self.local, self.hd)).transpose(1, 2)

    def forward(self, t):
        h = self.emb(t)
        x = Enter.apply(self.ln(h), self.layout.group)
        q, k, v = self.q_norm(self.heads(x, self.wq)), self.k_norm(self.heads(x, self.wk)), self.heads(x, self.wv)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(h + Leave.apply(F.linear(y, self.wo), self.layout.group))
