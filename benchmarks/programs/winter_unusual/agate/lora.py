import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=8, alpha=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(r, base.in_features) / r)
        self.up = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * self.scale

    @torch.no_grad()
    def merged(self):
        self.base.weight += self.scale * self.up @ self.down
        return self.base


def inject(net, names, **kw):
    for n in names:
        setattr(net, n, LoRALinear(getattr(net, n), **kw))


def merge(net):
    for n, m in list(net.named_children()):
        if isinstance(m, LoRALinear):
            setattr(net, n, m.merged())
