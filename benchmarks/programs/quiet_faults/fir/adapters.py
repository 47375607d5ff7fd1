import torch
import torch.nn as nn


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank=4, scale=2.0, dropout=0.05):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.drop = nn.Dropout(dropout)
        self.scale = scale
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(self.drop(x)))


def adapt(module, names, rank):
    for parent in list(module.modules()):
        for child_name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child_name in names:
                setattr(parent, child_name, LowRank(child, rank))
    for name, p in module.named_parameters():
        p.requires_grad_(any(k in name for k in (".down.", ".up.", "head.")))
    return module


def trainable_state(module):
    keep = {n for n, p in module.named_parameters() if p.requires_grad}
    return {k: v for k, v in module.state_dict().items() if k in keep}
