import copy

import torch
import torch.nn.functional as F
from torch import nn


def encoder(dim=32):
    return nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
                         nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, dim))


class Contrast(nn.Module):
    def __init__(self, dim=32, size=256, momentum=0.99, temperature=0.2):
        super().__init__()
        self.momentum, self.temperature = momentum, temperature
        self.query = encoder(dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def _slide(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.mul_(self.momentum).add_(q, alpha=1 - self.momentum)

    @torch.no_grad()
    def _push(self, keys):
        at = int(self.cursor)
        where = torch.arange(at, at + len(keys)) % len(self.queue)
        self.queue[where] = keys
        self.cursor.fill_((at + len(keys)) % len(self.queue))

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self._slide()
            k = F.normalize(self.key(b), dim=1)
            negatives = self.queue.clone()
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.t()], 1) / self.temperature
        self._push(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
