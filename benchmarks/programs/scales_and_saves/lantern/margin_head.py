"""Class-sharded additive angular margin head (each process owns a slice of the identities)."""
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def collect(x):
    """Stack the per-process batches in rank order."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    if x.requires_grad:
        parts[dist.get_rank()] = x
    return torch.cat(parts)


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad


class ShardedArcHead(nn.Module):
    def __init__(self, dim, identities, scale=16.0, margin=0.2):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.local = identities // self.world
        self.first = self.rank * self.local
        gen = torch.Generator().manual_seed(40 + self.rank)
        self.weight = nn.Parameter(torch.randn(self.local, dim, generator=gen) * 0.05)
        self.scale, self.cos_m, self.sin_m = scale, math.cos(margin), math.sin(margin)

    def forward(self, feats, labels):
        feats, labels = collect(F.normalize(feats)), collect(labels)
        cos = feats @ F.normalize(self.weight).t()
        mine = (labels >= self.first) & (labels < self.first + self.local)
        rows = mine.nonzero().squeeze(1)
        cols = labels[rows] - self.first
        target = cos[rows, cols]
        sine = (1.0 - target.square()).clamp_min(1e-6).sqrt()
        logits = cos.index_put((rows, cols), target * self.cos_m - sine * self.sin_m) * self.scale

        # softmax over all shards; every process ends up with the same scalar
        top = logits.detach().amax(1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        denom = _SumOver.apply((logits - top[:, None]).exp().sum(1))
        own = torch.zeros_like(top).index_put((rows,), (logits[rows, cols] - top[rows]))
        return (denom.log() - _SumOver.apply(own)).mean()
