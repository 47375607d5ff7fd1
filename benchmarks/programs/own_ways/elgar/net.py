import torch
from torch import nn


class Reverser(nn.Module):
    def __init__(self, vocab=20, length=10, width=64, heads=4):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(torch.randn(1, length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocab)

    def forward(self, src):
        return self.out(self.enc(self.tok(src) + self.pos))
