import torch
import torch.nn as nn


class EncoderLayer(nn.Module):
    def __init__(self, width, heads, mlp_ratio=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class FirstStage(nn.Module):
    """Patch embedding and the first half of the encoder."""

    def __init__(self, patch, width, heads, depth, tokens):
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.pos = nn.Parameter(torch.zeros(1, tokens, width))
        self.layers = nn.Sequential(*[EncoderLayer(width, heads) for _ in range(depth)])

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2).contiguous()
        return self.layers(x + self.pos)


class LastStage(nn.Module):
    """Second half of the encoder, pooling and classifier."""

    def __init__(self, width, heads, depth, classes):
        super().__init__()
        self.layers = nn.Sequential(*[EncoderLayer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.norm(self.layers(x)).mean(1))
