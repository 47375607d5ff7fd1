import math

import torch
from torch.distributed.tensor import DTensor


def local_view(t):
    return t.to_local() if isinstance(t, DTensor) else t


@torch.no_grad()
def clip_gradients(params, max_norm):
    """Scale gradients in place to at most `max_norm`, skip non-finite steps. Returns the norm before clipping."""
    grads = [local_view(p.grad) for p in params if p.grad is not None]
    sq = torch.zeros(())
    for g in grads:
        sq += g.float().pow(2).sum()
    norm = sq.sqrt().item()
    if not math.isfinite(norm):
        for g in grads:
            g.zero_()
        return norm
    scale = min(1.0, max_norm / (norm + 1e-6))
    for g in grads:
        g.mul_(scale)
    return norm
