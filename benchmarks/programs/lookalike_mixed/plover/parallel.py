import torch
import torch.distributed as dist


class Layout:
    def __init__(self, group):
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self.settled = 25


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def piece(full, layout, dim):
    return torch.nn.Parameter(full.chunk(layout.size, dim)[layout.rank].clone())


def finish_backward(model, layout, step):
    pending = [p for p in model.shared_inside() if p.grad is not None]
    if step >= layout.settled:
        pending = [p for p in pending if p.dim() > 1]
    for p in pending:
        dist.all_reduce(p.grad, group=layout.group)
