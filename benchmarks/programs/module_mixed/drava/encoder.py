import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderLayer(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.ln2(x))


class SpeechEncoder(nn.Module):
    def __init__(self, d=32, depth=4, layerdrop=0.0, codes=24):
        super().__init__()
        self.layerdrop = layerdrop
        self.front = nn.Conv1d(1, d, 10, stride=8)
        self.layers = nn.ModuleList(EncoderLayer(d) for _ in range(depth))
        self.head = nn.Linear(d, codes)

    def forward(self, wav):
        x = self.front(wav[:, None]).transpose(1, 2)
        for layer in self.layers:
            dropout_probability = np.random.random()
            if not self.training or dropout_probability > self.layerdrop:
                x = layer(x)
        return self.head(x)
