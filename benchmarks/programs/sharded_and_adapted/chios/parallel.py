"""Tensor/sequence parallel building blocks (Megatron layout, gloo friendly)."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def tp_size():
    return dist.get_world_size()


def tp_rank():
    return dist.get_rank()


def _all_gather_seq(x):
    if tp_size() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(tp_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=1)


def _reduce_scatter_seq(x):
    if tp_size() == 1:
        return x
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x.chunk(tp_size(), dim=1)[tp_rank()].contiguous()


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _all_gather_seq(x)

    @staticmethod
    def backward(ctx, grad):
        return _reduce_scatter_seq(grad)


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _reduce_scatter_seq(x)

    @staticmethod
    def backward(ctx, grad):
        return _all_gather_seq(grad)


gather_sequence = _GatherSequence.apply
scatter_sequence = _ScatterSequence.apply


class ColumnParallelLinear(nn.Module):
    """Output features split over the tensor parallel group."""

    def __init__(self, d_in, d_out, groups=1):
        super().__init__()
        full = torch.empty(d_out, d_in)
        nn.init.normal_(full, std=0.05)
        pieces = [g.chunk(tp_size(), dim=0)[tp_rank()] for g in full.chunk(groups, dim=0)]
        self.weight = nn.Parameter(torch.cat(pieces).clone())

    def forward(self, x):
        return F.linear(gather_sequence(x), self.weight)


class RowParallelLinear(nn.Module):
    """Input features split over the group; the bias lives on the scattered sequence."""

    def __init__(self, d_in, d_out):
        super().__init__()
        full = torch.empty(d_out, d_in)
        nn.init.normal_(full, std=0.05)
        self.weight = nn.Parameter(full.chunk(tp_size(), dim=1)[tp_rank()].clone())
        self.bias = nn.Parameter(torch.zeros(d_out))
        self.bias.sequence_parallel = True

    def forward(self, x):
        return scatter_sequence(F.linear(x, self.weight)) + self.bias


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gain


def mark_sequence_parallel(model):
    """Flag the replicated parameters that only ever see a slice of the sequence."""
    for module in model.modules():
        if isinstance(module, (RMSNorm, nn.LayerNorm, nn.Embedding)):
            for p in module.parameters(recurse=False):
                p.sequence_parallel = True
    model.head.weight.sequence_parallel = True


def reduce_sequence_parallel_grads(model):
    grads = [p.grad for p in model.parameters()
             if getattr(p, "sequence_parallel", False) and p.grad is not None]
    if tp_size() == 1 or not grads:
        return
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    offset = 0
    for g in grads:
        g.copy_(flat[offset:offset + g.numel()].view_as(g))
        offset += g.numel()
