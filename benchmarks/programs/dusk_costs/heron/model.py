import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(cin, cout, 3, padding=1, padding_mode="circular"), nn.GroupNorm(4, cout), nn.GELU(),
            nn.Conv2d(cout, cout, 3, padding=1, padding_mode="circular"), nn.GroupNorm(4, cout), nn.GELU())

    def forward(self, x):
        return self.body(x)


class FlowUNet(nn.Module):
    """Two-level UNet that advances (scalar, vx, vy) fields by one time step."""

    def __init__(self, fields=3, history=2, width=12):
        super().__init__()
        self.fields = fields
        self.enc1 = ConvBlock(fields * history, width)
        self.enc2 = ConvBlock(width, 2 * width)
        self.mid = ConvBlock(2 * width, 2 * width)
        self.dec = ConvBlock(3 * width, width)
        self.head = nn.Conv2d(width, fields, 1)

    def forward(self, x):
        b, t, c, h, w = x.shape
        e1 = self.enc1(x.reshape(b, t * c, h, w))
        e2 = self.mid(self.enc2(F.avg_pool2d(e1, 2)))
        up = F.interpolate(e2, size=(h, w), mode="nearest")
        return x[:, -1] + self.head(self.dec(torch.cat([e1, up], 1)))


def smse(pred, target):
    """MSE summed over fields, averaged over batch and space."""
    return (pred - target).square().mean((0, 2, 3)).sum()
