import torch
import torch.nn as nn


class Gate(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.lin = nn.Linear(d, d)

    def forward(self, x):
        return x + torch.tanh(self.lin(x) * self.scale + self.shift)


class Deep(nn.Module):
    def __init__(self, d=16, depth=24):
        super().__init__()
        self.inp, self.out = nn.Linear(8, d), nn.Linear(d, 1)
        self.gates = nn.ModuleList(Gate(d) for _ in range(depth))

    def forward(self, x):
        h = self.inp(x)
        for g in self.gates:
            h = g(h)
        return self.out(h)
