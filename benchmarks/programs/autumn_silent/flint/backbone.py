import torch
import torch.nn as nn
import torch.nn.functional as F


class FrozenBlock(nn.Module):
    PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "fc_in", "fc_out")

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        for name in self.PROJECTIONS:
            setattr(self, name, nn.Linear(dim, dim))
        self.adapters = nn.ModuleDict()

    def project(self, name, x):
        y = getattr(self, name)(x)
        if name in self.adapters:
            y = y + self.adapters[name](x)
        return y

    def forward(self, x):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (self.project(n, h).view(b, t, self.heads, -1).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        att = F.scaled_dot_product_attention(q, k, v)
        x = x + self.project("o_proj", att.transpose(1, 2).reshape(b, t, d))
        return x + self.project("fc_out", F.gelu(self.project("fc_in", self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, layers=3, classes=8, max_len=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(FrozenBlock(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x).mean(1))
