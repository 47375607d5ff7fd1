import torch
import torch.distributed as dist


@torch.no_grad()
def clip_grad_norm(model, mesh, max_norm, p=2.0):
    """Total norm of the sharded gradients, computed in float32, then scaling in place."""
    grads = [q.grad.to_local() for q in model.parameters() if q.grad is not None]
    total = torch.zeros(())
    for norm in torch._foreach_norm(grads, p):
        total += norm.float() ** p
    group = mesh["dp_shard"].get_group()
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
    total = total ** (1.0 / p)
    coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    torch._foreach_mul_(grads, coefficient)
    return total
