import torch
import torch.nn as nn


class Step(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.flip, self.h = flip, d // 2
        self.net = nn.Sequential(nn.Linear(self.h, 32), nn.Tanh(), nn.Linear(32, d))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, -1)
        s = s.tanh()
        b = (b - t) * torch.exp(-s)
        return torch.cat([b, a] if self.flip else [a, b], -1), -s.sum(-1)


class Flow(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.steps = nn.ModuleList(Step(d, i % 2 == 1) for i in range(depth))

    def forward(self, x):
        total = 0
        for s in self.steps:
            x, ld = s(x)
            total = total + ld
        return x, total

    def negative_log_likelihood(self, x):
        z, ld = self(x)
        return (0.5 * z.square().sum(-1) - ld).mean()
