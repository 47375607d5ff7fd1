"""Low-rank additions to frozen linear layers."""
import math

import torch
import torch.nn.functional as F
from torch import nn


class LowRankLinear(nn.Module):
    def __init__(self, base, rank, alpha, dropout):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.drop = nn.Dropout(dropout)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(self.drop(x), self.down), self.up) * self.scale


def attach(model, names, rank=4, alpha=8.0, dropout=0.0):
    """Swap every linear layer whose last name is in `names`; returns how many were swapped."""
    count = 0
    for path, module in list(model.named_modules()):
        leaf = path.rsplit(".", 1)[-1]
        if isinstance(module, nn.Linear) and leaf in names:
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, leaf, LowRankLinear(module, rank, alpha, dropout))
            count += 1
    return count


def trained_only(model):
    wanted = {n for n, p in model.named_parameters() if p.requires_grad}
    return {n: t for n, t in model.state_dict().items() if n in wanted}
