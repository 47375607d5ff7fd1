import math

import torch
import torch.distributed as dist

from layers import dp_group, tp_group


def all_reduce_grads(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat, group=dp_group())
    flat /= dist.get_world_size(dp_group())
    offset = 0
    for p in params:
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


@torch.no_grad()
def clip_grad_norm(params, max_norm):
    shared = [p.grad for p in params if not getattr(p, "tensor_model_parallel", False)]
    sharded = [p.grad for p in params if getattr(p, "tensor_model_parallel", False)]
    norm_sq = torch.stack([g.pow(2).sum() for g in sharded]).sum()
    dist.all_reduce(norm_sq, group=tp_group())
    norm_sq += torch.stack([g.pow(2).sum() for g in shared]).sum()
    total = norm_sq.sqrt().item()
    coef = max_norm / (total + 1e-6)
    if coef < 1.0:
        for p in params:
            p.grad.mul_(coef)
    return total


def cosine_lr(step, warmup, total, peak, floor=0.1):
    if step < warmup:
        return peak * (step + 1) / warmup
    frac = (step - warmup) / max(1, total - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * frac)))
