import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask=None):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class VisionTower(nn.Module):
    def __init__(self, dim=96, depth=2, heads=4, patch=8, size=32):
        super().__init__()
        self.patchify = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(torch.zeros(1, (size // patch) ** 2, dim))
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])

    def forward(self, pixels):
        x = self.patchify(pixels).flatten(2).transpose(1, 2) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return x


class LanguageModel(nn.Module):
    def __init__(self, vocab=512, dim=96, depth=3, heads=4, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(1, max_len, dim))
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, image_tokens=None):
        x = self.tok(ids)
        if image_tokens is not None:
            x = torch.cat([image_tokens, x], dim=1)
        x = x + self.pos[:, : x.size(1)]
        n = x.size(1)
        mask = torch.full((n, n), float("-inf")).triu(1)
        for blk in self.blocks:
            x = blk(x, mask)
        return self.head(self.norm(x[:, -ids.size(1):]))


class CaptionModel(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.vision = VisionTower(dim)
        self.projector = nn.Linear(dim, dim)
        self.lm = LanguageModel(dim=dim)

    def forward(self, ids, pixel_values=None):
        image_tokens = None
        if pixel_values is not None:
            image_tokens = self.projector(self.vision(pixel_values))
        return self.lm(ids, image_tokens)
