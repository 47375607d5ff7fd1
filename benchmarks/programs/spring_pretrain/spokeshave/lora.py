import re
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LoraConfig:
    r: int = 8
    alpha: int = 16
    target_modules: list = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    exclude_layers: list = field(default_factory=list)

    def __post_init__(self):
        self.target_modules = set(self.target_modules)


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, cfg: LoraConfig, gen):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(cfg.r, base.in_features, generator=gen) / cfg.r ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, cfg.r))
        self.scaling = cfg.alpha / cfg.r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


def inject(model, cfg, seed):
    """Wrap every targeted projection; returns {module path: adapter}."""
    model.requires_grad_(False)
    gen = torch.Generator().manual_seed(seed)
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    adapters = {}
    for name in names:
        layer = re.search(r"layers\.(\d+)\.", name)
        if name.rsplit(".", 1)[-1] not in cfg.target_modules or (layer and int(layer[1]) in cfg.exclude_layers):
            continue
        parent, leaf = model.get_submodule(name.rsplit(".", 1)[0]), name.rsplit(".", 1)[-1]
        wrapped = LoraLinear(getattr(parent, leaf), cfg, gen)
        setattr(parent, leaf, wrapped)
        adapters[name] = wrapped
    return adapters


class AdapterReducer:
    """One flat all_reduce for all adapter gradients (a few hundred KB), instead of wrapping the model in DDP."""

    def __init__(self, adapters, cfg, group=None):
        self.group = group
        self.params = []
        for target in cfg.target_modules:
            for name, mod in adapters.items():
                if name.endswith(target):
                    self.params += [mod.lora_A, mod.lora_B]
        self.buffer = torch.zeros(sum(p.numel() for p in self.params))

    @torch.no_grad()
    def reduce(self):
        views = self.buffer.split([p.numel() for p in self.params])
        for v, p in zip(views, self.params):
            v.copy_(p.grad.flatten())
        dist.all_reduce(self.buffer, group=self.group)
        self.buffer /= dist.get_world_size(self.group)
        for v, p in zip(views, self.params):
            p.grad.copy_(v.view_as(p))
