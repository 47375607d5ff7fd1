import torch
import torch.distributed as dist
import torch.distributed.nn.functional as distF
from torch import nn


class CrossRankBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with statistics over all ranks; works with any backend."""

    def forward(self, x):
        if not self.training or dist.get_world_size() == 1:
            return super().forward(x)
        count = torch.full((1,), float(x.numel() // x.size(1)))
        stats = torch.cat([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3)), count])
        stats = distF.all_reduce(stats)
        total = stats[-1]
        mean, sqr = (stats[:-1] / total).chunk(2)
        var = sqr - mean * mean
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * total / (total - 1), self.momentum)
            self.num_batches_tracked += 1
        scale = self.weight * torch.rsqrt(var + self.eps)
        shift = self.bias - mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


def conv_block(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False),
        CrossRankBatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class SmallUNet(nn.Module):
    def __init__(self, num_classes, width=8):
        super().__init__()
        self.stem = conv_block(3, width)
        self.down = conv_block(width, width * 2, stride=2)
        self.mid = conv_block(width * 2, width * 2)
        self.up = nn.ConvTranspose2d(width * 2, width, 2, stride=2)
        self.fuse = conv_block(width * 2, width)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x):
        skip = self.stem(x)
        deep = self.mid(self.down(skip))
        x = torch.cat([self.up(deep), skip], dim=1)
        return self.head(self.fuse(x))
