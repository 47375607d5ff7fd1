import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ImageTower(nn.Module):
    def __init__(self, dim, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.GELU(),
            nn.Conv2d(width, width * 2, 3, 2, 1), nn.GroupNorm(4, width * 2), nn.GELU(),
            nn.Flatten(), nn.Linear(width * 2 * 16, dim),
        )

    def forward(self, x):
        return self.body(x)


class TextTower(nn.Module):
    def __init__(self, vocab, length, dim):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, dim * 2, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, ids):
        return self.proj(self.enc(self.tok(ids) + self.pos).mean(1))


class DualEncoder(nn.Module):
    def __init__(self, vocab, length, dim=64):
        super().__init__()
        self.image, self.text = ImageTower(dim), TextTower(vocab, length, dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, ids):
        return F.normalize(self.image(images), dim=-1), F.normalize(self.text(ids), dim=-1), self.logit_scale.exp()
