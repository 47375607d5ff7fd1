import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ImageTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 4, stride=4)
        self.blocks = nn.Sequential(
            nn.GELU(), nn.Conv2d(48, 96, 3, padding=1), nn.GELU(), nn.Conv2d(96, 96, 3, padding=1), nn.GELU()
        )
        self.proj = nn.Linear(96 * 16, dim)

    def forward(self, x):
        return self.proj(self.blocks(self.stem(x)).flatten(1))


class TextTower(nn.Module):
    def __init__(self, vocab, length, dim, width=96):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, width * 2, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.proj = nn.Linear(width, dim)

    def forward(self, tokens):
        return self.proj(self.encoder(self.tok(tokens) + self.pos).mean(1))


class TwoTower(nn.Module):
    def __init__(self, vocab=512, length=12, dim=64):
        super().__init__()
        self.visual = ImageTower(dim)
        self.textual = TextTower(vocab, length, dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, tokens):
        img = F.normalize(self.visual(images), dim=-1)
        txt = F.normalize(self.textual(tokens), dim=-1)
        return img, txt, self.logit_scale.clamp(max=4.6).exp()
