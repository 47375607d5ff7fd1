import torch
import torch.nn as nn
import torch.nn.functional as F

OPS = {
    "skip": lambda c: nn.Identity(),
    "conv3": lambda c: nn.Sequential(nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.GroupNorm(4, c), nn.ReLU()),
    "sep3": lambda c: nn.Sequential(nn.Conv2d(c, c, 3, 1, 1, groups=c, bias=False), nn.Conv2d(c, c, 1, bias=False),
                                    nn.GroupNorm(4, c), nn.ReLU()),
    "avg": lambda c: nn.AvgPool2d(3, 1, 1),
}


class MixedOp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ops = nn.ModuleList(make(c) for make in OPS.values())

    def forward(self, x, w):
        return sum(wi * op(x) for wi, op in zip(w, self.ops))


class SuperNet(nn.Module):
    def __init__(self, c=24, cells=4, classes=8):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, 2, 1)
        self.cells = nn.ModuleList(MixedOp(c) for _ in range(cells))
        self.fc = nn.Linear(c, classes)
        self.alphas = nn.Parameter(1e-3 * torch.randn(cells, len(OPS)))

    def forward(self, x):
        x = self.stem(x)
        for cell, w in zip(self.cells, F.softmax(self.alphas, -1)):
            x = cell(x, w)
        return self.fc(x.mean((2, 3)))

    def genotype(self):
        return [list(OPS)[i] for i in self.alphas.argmax(-1).tolist()]
