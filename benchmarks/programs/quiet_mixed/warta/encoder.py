import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, mels, dim, classes, layers=2):
        super().__init__()
        self.inp = nn.Linear(mels, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, classes)

    def forward(self, x, n):
        mask = torch.arange(x.size(1))[None] >= n[:, None]
        h = self.body(self.inp(x), src_key_padding_mask=mask)
        h = h.masked_fill(mask[..., None], 0).sum(1) / n[:, None]
        return self.out(h)
