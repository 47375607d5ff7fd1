import torch
import torch.distributed as dist
import torch.nn as nn


class IslandNorm(nn.Module):
    """Feature normalisation with running statistics shared by the workers of one island."""

    def __init__(self, dim, group, size, momentum=0.1):
        super().__init__()
        self.group, self.size, self.momentum = group, size, momentum
        self.scale = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                stats = torch.stack([x.mean(0), x.pow(2).mean(0)])
                dist.all_reduce(stats, group=self.group)
                stats /= self.size
                self.mean.lerp_(stats[0], self.momentum)
                self.var.lerp_(stats[1] - stats[0].pow(2), self.momentum)
        return (x - self.mean) / (self.var + 1e-5).sqrt() * self.scale + self.shift


class Net(nn.Module):
    def __init__(self, topo, dim=64, hidden=256, classes=8):
        super().__init__()
        n = len(topo.members)
        self.fc1 = nn.Linear(dim, hidden)
        self.norm1 = IslandNorm(hidden, topo.island_group, n)
        self.fc2 = nn.Linear(hidden, hidden)
        self.norm2 = IslandNorm(hidden, topo.island_group, n)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        x = torch.relu(self.norm1(self.fc1(x)))
        x = torch.relu(self.norm2(self.fc2(x)))
        return self.head(x)
