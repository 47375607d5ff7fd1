from collections import OrderedDict

import torch
import torch.nn as nn


class FrozenBackbone(nn.Module):
    def __init__(self, width=256, depth=6):
        super().__init__()
        g = torch.Generator().manual_seed(12)
        self.layers = nn.ModuleList(nn.Conv1d(width if i else 4, width, 5, padding=2) for i in range(depth))
        for p in self.parameters():
            p.data.copy_(torch.randn(p.shape, generator=g) / (p[0].numel() ** 0.5))
            p.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.cat([x.mean(-1), x.amax(-1)], 1)


class FeatureCache:
    """Features of the frozen backbone never change, so each row is computed once while there is room."""

    def __init__(self, backbone, budget_mb):
        self.backbone = backbone
        self.budget = budget_mb * 1e6
        self.rows = OrderedDict()
        self.used = 0
        self.hits = self.misses = 0

    def __call__(self, ids, signals):
        missing = [i for i, k in enumerate(ids) if k not in self.rows]
        fresh = {}
        if missing:
            feats = self.backbone(signals[torch.tensor(missing)])
            for i, f in zip(missing, feats):
                fresh[ids[i]] = f
                size = f.numel() * f.element_size()
                if self.used + size <= self.budget:
                    self.rows[ids[i]] = f.clone()
                    self.used += size
        self.misses += len(missing)
        self.hits += len(ids) - len(missing)
        return torch.stack([fresh[k] if k in fresh else self.rows[k] for k in ids])
