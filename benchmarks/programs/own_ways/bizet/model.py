import torch
from torch import nn


class Encoder(nn.Module):
    """Small pre-norm transformer with learned positions."""

    def __init__(self, vocab, dim=48, heads=4, depth=2, max_len=40, classes=4, p=0.0):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Embedding(max_len, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=p, batch_first=True,
                                           norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        pad = ids.eq(0)
        steps = torch.arange(ids.size(1)).expand_as(ids)
        h = self.tok(ids) + self.pos(steps)
        h = self.norm(self.body(h, src_key_padding_mask=pad))
        keep = (~pad).unsqueeze(-1).float()
        return self.head((h * keep).sum(1) / keep.sum(1).clamp(min=1))
