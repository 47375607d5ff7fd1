import torch
from torch import nn


class Vision(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, px):
        return self.mlp(self.patch(px).flatten(2).mean(-1))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Reader(nn.Module):
    """Scores a document from its text and, where there is one, its picture."""

    def __init__(self, vocab=50, width=32, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.vision = Vision(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.score = nn.Linear(width, 1)

    def forward(self, ids, pixel_values=None, pixel_rows=None):
        h = self.embed(ids)
        extra = h.new_zeros(h.size(0), 1, h.size(2))
        if pixel_values is not None:
            extra = extra.index_copy(0, pixel_rows, self.vision(pixel_values).unsqueeze(1))
        h = torch.cat([extra, h], 1)
        for block in self.blocks:
            h = block(h)
        return self.score(h.mean(1)).squeeze(-1)
