import torch
import torch.distributed as dist


@torch.no_grad()
def clip_grad_norm(parameters, max_norm, norm_type=2.0, group=None):
    """Total norm over all parameters, also over those that other ranks of `group` hold."""
    params = [p for p in parameters if p.grad is not None]
    total = torch.stack([p.grad.norm(norm_type) for p in params]).pow(norm_type).sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    total = total.pow(1.0 / norm_type)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(scale)
    return total
