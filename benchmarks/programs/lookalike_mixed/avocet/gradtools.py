import torch
import torch.distributed as dist


@torch.no_grad()
def limit_gradients(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    sq = torch.stack([g.pow(2).sum() for g in grads]).sum()
    dist.all_reduce(sq)
    norm = sq.sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for g in grads:
        g.mul_(scale)
    return norm
