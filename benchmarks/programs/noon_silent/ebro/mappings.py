"""Communication between the sequence-split and the tensor-split regions."""
import torch
import torch.distributed as dist


def _gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def _reduce_scatter(x):
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


class _GatherSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _gather(x)

    @staticmethod
    def backward(ctx, g):
        return _reduce_scatter(g)


class _ScatterSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _reduce_scatter(x)

    @staticmethod
    def backward(ctx, g):
        return _gather(g)


gather_sequence = _GatherSeq.apply
reduce_scatter_sequence = _ScatterSeq.apply


def allreduce_sequence_parallel_grads(model):
    grads = [p.grad for p in model.parameters() if getattr(p, "sequence_parallel", False)]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    offset = 0
    for g in grads:
        g.copy_(flat[offset:offset + g.numel()].view_as(g))
        offset += g.numel()
