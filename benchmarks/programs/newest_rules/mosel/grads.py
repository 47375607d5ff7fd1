import torch
import torch.distributed as dist


def local_squares(params):
    parts = [p.grad.to_local().float().pow(2).sum() for p in params if p.grad is not None]
    return torch.stack(parts).sum()


def limit(params, max_norm):
    params = list(params)
    squares = local_squares(params)
    dist.all_reduce(squares)
    norm = squares.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        if p.grad is not None:
            p.grad.to_local().mul_(factor)
    return norm
