import torch
import torch.distributed as dist


def _gather_seq(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=1)


def _scatter_sum_seq(x):
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _gather_seq(x)

    @staticmethod
    def backward(ctx, grad):
        return _scatter_sum_seq(grad)


class ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _scatter_sum_seq(x)

    @staticmethod
    def backward(ctx, grad):
        return _gather_seq(grad)


gather_sequence = GatherSequence.apply
reduce_scatter_sequence = ReduceScatterSequence.apply
