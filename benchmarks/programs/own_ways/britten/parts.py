import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.features = width * 4

    def forward(self, x):
        return self.layers(x)


class Classifier(nn.Module):
    def __init__(self, classes, dropout=0.1):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Sequential(nn.Linear(self.backbone.features, 64), nn.ReLU(),
                                  nn.Dropout(dropout), nn.Linear(64, classes))

    def forward(self, x):
        return self.head(self.backbone(x))


class GradualFinetuning:
    """Trains the head first and starts to move the backbone at a given epoch."""

    def __init__(self, model, optimizer, unfreeze_at, backbone_lr):
        self.model, self.optimizer = model, optimizer
        self.unfreeze_at, self.backbone_lr = unfreeze_at, backbone_lr

    def freeze(self):
        self.optimizer.param_groups[1]["lr"] = 0.0

    def on_epoch_start(self, epoch):
        if epoch != self.unfreeze_at:
            return False
        self.optimizer.param_groups[1]["lr"] = self.backbone_lr
        return True


def shapes(n, seed, size=16, classes=4):
    """Bars, crosses, rings and blobs with noise."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx = 5 + 6 * torch.rand(n, generator=g)
    cy = 5 + 6 * torch.rand(n, generator=g)
    dx, dy = xx[None] - cx[:, None, None], yy[None] - cy[:, None, None]
    r = (dx ** 2 + dy ** 2).float().sqrt()
    forms = torch.stack([(dx.abs() < 1.2).float(),
                         ((dx.abs() < 1.0) | (dy.abs() < 1.0)).float(),
                         ((r - 4).abs() < 1.0).float(), (r < 3).float()], 1)
    x = forms[torch.arange(n), y] + 0.7 * torch.randn(n, size, size, generator=g)
    return x.unsqueeze(1), y
