import torch
import torch.nn as nn


class LoRA(nn.Module):
    def __init__(self, dim, rank, alpha):
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.scale * self.up(self.down(x))


def parse_targets(spec):
    return {name.strip() for name in spec.split(",") if name.strip()}


def inject(model, targets, dim, rank, alpha):
    """Freeze the backbone, attach low-rank adapters to the requested projections."""
    for p in model.parameters():
        p.requires_grad_(False)
    for block in model.blocks:
        unknown = targets - set(block.PROJECTIONS)
        if unknown:
            raise ValueError(f"no such projection: {sorted(unknown)}")
        for name in sorted(targets):
            block.adapters[name] = LoRA(dim, rank, alpha)
    model.classifier.requires_grad_(True)
    return [n for n, p in model.named_parameters() if p.requires_grad]
