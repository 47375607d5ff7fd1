"""Tensor parallel layers with the sequence dimension split between them."""
import torch
import torch.distributed as dist
import torch.nn as nn


class _GatherSeq(torch.autograd.Function):
    """[s/p, b, h] -> [s, b, h]; backward sums over the group and keeps the own slice."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=0)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), dim=0)[dist.get_rank()].contiguous()


class _ScatterSumSeq(torch.autograd.Function):
    """[s, b, h] partial sums -> [s/p, b, h]; backward gathers."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size(), dim=0)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts, dim=0)


gather_seq = _GatherSeq.apply
scatter_sum_seq = _ScatterSumSeq.apply


def tag(module):
    for p in module.parameters(recurse=False):
        p.sequence_parallel = True
    return module


class Norm(nn.LayerNorm):
    def __init__(self, dim):
        super().__init__(dim)
        tag(self)


def shard_(linear_full, dim):
    """Slice of a full weight for this rank."""
    return linear_full.chunk(dist.get_world_size(), dim=dim)[dist.get_rank()].clone()


class ColumnLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(shard_(torch.randn(d_out, d_in) * d_in ** -0.5, 0))
        self.bias = nn.Parameter(shard_(torch.zeros(d_out), 0))

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(shard_(torch.randn(d_out, d_in) * d_in ** -0.5, 1))
        self.bias = nn.Parameter(torch.zeros(d_out))
        self.bias.sequence_parallel = True

    def forward(self, x):
        return scatter_sum_seq(nn.functional.linear(x, self.weight)) + self.bias


def finalize_grads(model):
    grads = [p.grad for p in model.parameters() if getattr(p, "sequence_parallel", False)]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    offset = 0
    for g in grads:
        g.copy_(flat[offset:offset + g.numel()].view_as(g))
        offset += g.numel()
