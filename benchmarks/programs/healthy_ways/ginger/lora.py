import math

import torch
import torch.nn as nn


class LoRALinear(nn.Module):
    """A frozen linear layer with a trainable low-rank correction."""

    def __init__(self, base, rank=4, alpha=8.0, drop=0.05):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.drop, self.scale = nn.Dropout(drop), alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (self.drop(x) @ self.a.t() @ self.b.t())


def inject(model, names, **kw):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name in names:
                setattr(parent, name, LoRALinear(child, **kw))
    return model


def adapter_state(model):
    return {k: v.detach().clone() for k, v in model.state_dict().items() if k.endswith((".a", ".b")) or "score" in k}
