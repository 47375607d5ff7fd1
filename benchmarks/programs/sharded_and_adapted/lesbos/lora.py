import math

import torch
import torch.nn as nn


class LoRALinear(nn.Module):
    """A frozen linear layer with a trainable low-rank correction."""

    def __init__(self, base, rank, alpha, dropout):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.drop = nn.Dropout(dropout)
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + self.scale * (self.drop(x) @ self.lora_a.t() @ self.lora_b.t())


def add_adapters(model, targets, rank=8, alpha=16.0, dropout=0.05):
    """Swap every matching linear layer; returns the names that were replaced."""
    replaced = []
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or name.split(".")[-1] not in targets:
            continue
        parent = model.get_submodule(name.rsplit(".", 1)[0])
        setattr(parent, name.split(".")[-1], LoRALinear(module, rank, alpha, dropout))
        replaced.append(name)
    return replaced


def freeze_backbone(model, keep=("head", "norm")):
    for name, p in model.named_parameters():
        p.requires_grad_(any(part in name for part in keep))


def adapter_state(model):
    return {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n or "head" in n}


def trainable_parameters(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]
