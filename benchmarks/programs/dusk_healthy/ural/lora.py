import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    """A frozen matrix plus a low-rank update which can be merged and started anew."""

    def __init__(self, i, o, r=8, alpha=16):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / i ** 0.5, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(r, i) / i ** 0.5), nn.Parameter(torch.zeros(o, r))
        self.scale = alpha / r

    def forward(self, x):
        return F.linear(x, self.weight) + self.scale * F.linear(F.linear(x, self.a), self.b)

    @torch.no_grad()
    def merge_and_restart(self, gen):
        self.weight += self.scale * self.b @ self.a
        self.a.copy_(torch.randn(self.a.shape, generator=gen) / self.a.shape[1] ** 0.5)
        self.b.zero_()
