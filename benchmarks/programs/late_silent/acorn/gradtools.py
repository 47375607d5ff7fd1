import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def _piece(grad):
    return grad.to_local() if isinstance(grad, DTensor) else grad


@torch.no_grad()
def clip_sharded(params, max_norm, eps=1e-6):
    """Clip gradients by their norm with one fused pass over the pieces in memory."""
    pieces = [_piece(p.grad) for p in params if p.grad is not None]
    norms = torch._foreach_norm([g for g in pieces if g.numel()], 2)
    total = torch.stack(norms).pow(2).sum()
    dist.all_reduce(total)
    total = total.sqrt()
    scale = (max_norm / (total + eps)).clamp(max=1.0)
    torch._foreach_mul_(pieces, scale)
    return total.item()
