import torch
import torch.nn as nn
import torch.nn.functional as F


class Backbone(nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 12, 7, 2, 3), nn.GELU(), nn.Conv1d(12, 24, 5, 2, 2), nn.GELU())
        self.pool = nn.AdaptiveAvgPool1d(8)
        self.norm = nn.BatchNorm1d(24 * 8, affine=False, track_running_stats=False)
        self.proj = nn.Linear(24 * 8, dim)

    def forward(self, x):
        h = self.pool(self.stem(x.unsqueeze(1))).flatten(1)
        return self.proj(self.norm(h))


class ProjectionHead(nn.Module):
    def __init__(self, dim, out_dim, hidden=64, bottleneck=24):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, bottleneck))
        self.last_layer = nn.Linear(bottleneck, out_dim, bias=False)

    def forward(self, x):
        z = F.normalize(self.mlp(x), dim=-1)
        return F.linear(z, F.normalize(self.last_layer.weight, dim=-1))


class MultiCropWrapper(nn.Module):
    """Runs crops of the same length together, then the head on everything."""

    def __init__(self, backbone, head):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, crops):
        feats, start = [], 0
        lengths = [c.shape[-1] for c in crops]
        while start < len(crops):
            end = start
            while end < len(crops) and lengths[end] == lengths[start]:
                end += 1
            feats.append(self.backbone(torch.cat(crops[start:end])))
            start = end
        return self.head(torch.cat(feats))
