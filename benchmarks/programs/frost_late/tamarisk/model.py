import torch
from torch import nn


class MultiTaskNet(nn.Module):
    def __init__(self, tasks, rank, width=24):
        super().__init__()
        torch.manual_seed(11)
        self.trunk = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.heads = nn.ModuleDict()
        for name, spec in tasks.items():
            head = nn.Linear(width, spec["out"])
            if rank in spec["ranks"]:
                self.heads[name] = head

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}
