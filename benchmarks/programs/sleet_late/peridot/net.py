import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, patch=8, dim=48, depth=2):
        super().__init__()
        self.patch = patch
        self.proj = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.zeros(1, 8, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x, mask=None):
        tok = self.proj(x.unflatten(1, (-1, self.patch)))
        if mask is not None:
            tok = tok * (~mask).unsqueeze(-1)
        return self.blocks(tok + self.pos)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(48, 8)

    def forward(self, x):
        mask = torch.rand(x.shape[0], 8) < 0.5
        rec = self.head(self.encoder(x, mask))
        return ((rec - x.unflatten(1, (-1, 8))) ** 2).mean(-1)[mask].mean()


class Tagged(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, classes))

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))
