import torch
from torch import nn


class AttentionWorkspace:
    """Keeps the score buffer of one batch inside a fixed arena."""

    def __init__(self, megabytes):
        self.limit = int(megabytes * 1024 ** 2)

    def reserve(self, batch, heads, length):
        need = batch * heads * length * length * 4
        if need > self.limit:
            raise RuntimeError(f"workspace out of memory: tried to reserve {need} bytes of {self.limit}")


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, arena):
        super().__init__()
        self.heads, self.arena = heads, arena
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def forward(self, x, pad):
        b, t, d = x.shape
        self.arena.reserve(b, self.heads, t)
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        score = score.masked_fill(pad[:, None, None, :], -1e4)
        x = x + self.proj((score.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.norm2(x))


class AcousticModel(nn.Module):
    def __init__(self, mels=40, dim=128, heads=4, depth=2, tokens=32, arena_mb=4.0):
        super().__init__()
        arena = AttentionWorkspace(arena_mb)
        self.sub = nn.Conv1d(mels, dim, 3, stride=2, padding=1)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads, arena) for _ in range(depth)])
        self.out = nn.Linear(dim, tokens)

    def forward(self, feats, lengths):
        x = torch.relu(self.sub(feats.transpose(1, 2))).transpose(1, 2)
        lens = (lengths + 1) // 2
        pad = torch.arange(x.size(1))[None] >= lens[:, None]
        for layer in self.layers:
            x = layer(x, pad)
        return self.out(x).log_softmax(-1), lens
