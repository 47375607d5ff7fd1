import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.nn.functional import all_gather


class TwoTower(nn.Module):
    def __init__(self, vocab=200, d=48):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.GELU(), nn.Conv2d(24, 48, 3, 2, 1), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, d))
        self.words = nn.EmbeddingBag(vocab, 64, mode="mean")
        self.text = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, d))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, img, txt):
        a = F.normalize(self.image(img), dim=-1)
        b = F.normalize(self.text(self.words(txt)), dim=-1)
        return a, b, self.logit_scale.exp().clamp(max=100)


def clip_loss(a, b, scale):
    """Own rows against the columns of all ranks; gradients flow back to the remote features."""
    all_a, all_b = torch.cat(all_gather(a)), torch.cat(all_gather(b))
    target = torch.arange(len(a)) + dist.get_rank() * len(a)
    return 0.5 * (F.cross_entropy(scale * a @ all_b.t(), target) + F.cross_entropy(scale * b @ all_a.t(), target))
