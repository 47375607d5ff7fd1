import math

import torch
import torch.nn as nn


class LoRAPart(nn.Module):
    """Low-rank branch that takes over the forward of one linear layer."""

    def __init__(self, name, linear, rank, alpha):
        super().__init__()
        self.name = name
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank
        self.multiplier = 1.0
        self._linear = [linear]

    def apply_to(self):
        linear = self._linear[0]
        self.org_forward = linear.forward
        linear.forward = self.forward

    def forward(self, x):
        return self.org_forward(x) + self.up(self.down(x)) * self.multiplier * self.scale


class LoRANetwork(nn.Module):
    def __init__(self, model, targets, rank=4, alpha=4.0):
        super().__init__()
        self.parts = nn.ModuleList(
            LoRAPart(name, m, rank, alpha)
            for name, m in model.named_modules()
            if isinstance(m, nn.Linear) and any(name.endswith(t) for t in targets))

    def apply_to(self):
        for p in self.parts:
            p.apply_to()

    def param_groups(self, lr):
        return [{"params": [p.down.weight for p in self.parts], "lr": lr},
                {"params": [p.up.weight for p in self.parts], "lr": lr}]

    def forward(self, *args):
        raise RuntimeError("the network works through the layers it is applied to")
