import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, channels=16, out=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1), nn.GroupNorm(4, channels), nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.GroupNorm(4, 2 * channels), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.project = nn.Sequential(nn.Linear(8 * channels, 64), nn.ReLU(), nn.Linear(64, out))

    def forward(self, x):
        return F.normalize(self.project(self.conv(x)), dim=1)


@torch.no_grad()
def gather_rows(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


class KeyMemory(nn.Module):
    """Ring buffer of keys from all processes."""

    def __init__(self, size, dim, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.register_buffer("keys", F.normalize(torch.randn(size, dim, generator=g), dim=1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, local_keys):
        rows = gather_rows(local_keys)
        start = int(self.cursor)
        slots = (start + torch.arange(rows.size(0))) % self.keys.size(0)
        self.keys[slots] = rows
        self.cursor.fill_((start + rows.size(0)) % self.keys.size(0))


class MomentumPair:
    """Query network (trained, wrapped) and key network (moving average of the query network)."""

    def __init__(self, wrap, momentum):
        self.momentum = momentum
        plain = Encoder()
        self.query = wrap(plain)
        self.key = copy.deepcopy(self.query.module)
        for p in self.key.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for k, q in zip(self.key.parameters(), self.query.module.parameters()):
            k.lerp_(q, 1 - self.momentum)


def contrastive_loss(q, k, memory, temperature):
    positive = (q * k).sum(1, keepdim=True)
    negative = q @ memory.keys.clone().t()
    logits = torch.cat([positive, negative], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long)), logits
