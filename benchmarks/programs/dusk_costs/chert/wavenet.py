"""Gated dilated convolutions with weight-normalised layers (many small tensors)."""
import torch
import torch.nn as nn


class GatedLayer(nn.Module):
    def __init__(self, ch, skip, dilation):
        super().__init__()
        self.pad = dilation
        self.filter = nn.utils.parametrizations.weight_norm(nn.Conv1d(ch, ch, 2, dilation=dilation))
        self.gate = nn.utils.parametrizations.weight_norm(nn.Conv1d(ch, ch, 2, dilation=dilation))
        self.skip = nn.utils.parametrizations.weight_norm(nn.Conv1d(ch, skip, 1))
        self.res = nn.utils.parametrizations.weight_norm(nn.Conv1d(ch, ch, 1))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        h = nn.functional.pad(x, (self.pad, 0))
        z = torch.tanh(self.filter(h)) * torch.sigmoid(self.gate(h))
        return x + self.scale * self.res(z), self.skip(z)


class WaveNet(nn.Module):
    def __init__(self, levels=64, ch=12, skip=24, stacks=2, per_stack=7):
        super().__init__()
        self.embed = nn.Embedding(levels, ch)
        self.layers = nn.ModuleList(GatedLayer(ch, skip, 2 ** i) for _ in range(stacks) for i in range(per_stack))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, levels, 1))

    def forward(self, ids):
        x, total = self.embed(ids).transpose(1, 2), 0
        for layer in self.layers:
            x, s = layer(x)
            total = total + s
        return self.out(total)
