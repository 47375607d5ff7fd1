import copy

import torch
import torch.distributed as dist
from torch import nn
import torch.nn.functional as F


@torch.no_grad()
def gather(x):
    out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(out, x.contiguous())
    return torch.cat(out)


class MomentumContrast(nn.Module):
    """Query encoder by gradient, key encoder by moving average, a queue of keys from all processes."""

    def __init__(self, encoder, dim, size, momentum=0.98, temperature=0.2):
        super().__init__()
        self.query = encoder
        self.key = copy.deepcopy(encoder)
        for p in self.key.parameters():
            p.requires_grad_(False)
        self.momentum, self.temperature = momentum, temperature
        self.register_buffer("queue", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update_key(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.lerp_(q, 1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        keys = gather(keys)
        at = int(self.pointer)
        self.queue[at:at + len(keys)] = keys
        self.pointer.fill_((at + len(keys)) % len(self.queue))

    @torch.no_grad()
    def keys_shuffled(self, x):
        """Encode the keys on another process than the queries, and bring them home."""
        everything = gather(x)
        order = torch.randperm(len(everything))
        dist.broadcast(order, src=0)
        rank, size = dist.get_rank(), len(x)
        k = F.normalize(self.key(everything[order[rank * size:(rank + 1) * size]]), dim=1)
        k = gather(k)
        return k[order.argsort()[rank * size:(rank + 1) * size]]

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        self.update_key()
        k = self.keys_shuffled(b)
        negatives = self.queue.clone()
        self.enqueue(k)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.t()], dim=1) / self.temperature
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
