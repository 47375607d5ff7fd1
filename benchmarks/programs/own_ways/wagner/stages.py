import torch
from torch import nn


class Front(nn.Module):
    def __init__(self, vocab, width, seq):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        h = self.emb(ids)
        return self.norm(h + torch.relu(self.mix(h.transpose(1, 2)).transpose(1, 2)))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h):
        return h + self.ff(self.norm(h))


class Back(nn.Module):
    def __init__(self, width, classes, depth=6):
        super().__init__()
        self.blocks = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, h):
        return self.out(self.norm(self.blocks(h)).mean(1))
