"""Tensor + sequence parallel primitives (sequence dim is 0, layout is [s, b, h])."""
import torch
import torch.distributed as dist
import torch.nn as nn

_TP = None


def init_tp(group):
    global _TP
    _TP = group


def tp_rank():
    return dist.get_rank(_TP)


def tp_size():
    return dist.get_world_size(_TP)


def _all_gather_seq(x):
    parts = [torch.empty_like(x) for _ in range(tp_size())]
    dist.all_gather(parts, x.contiguous(), group=_TP)
    return torch.cat(parts, dim=0)


def _reduce_scatter_seq(x):
    full = x.contiguous().clone()
    dist.all_reduce(full, group=_TP)
    return full.chunk(tp_size(), dim=0)[tp_rank()].contiguous()


def _split_seq(x):
    return x.chunk(tp_size(), dim=0)[tp_rank()].contiguous()


class _GatherForColumn(torch.autograd.Function):
    """all-gather in forward, reduce-scatter in backward"""

    @staticmethod
    def forward(ctx, x):
        return _all_gather_seq(x)

    @staticmethod
    def backward(ctx, g):
        return _reduce_scatter_seq(g)


class _ScatterFromRow(torch.autograd.Function):
    """reduce-scatter in forward, all-gather in backward"""

    @staticmethod
    def forward(ctx, x):
        return _reduce_scatter_seq(x)

    @staticmethod
    def backward(ctx, g):
        return _all_gather_seq(g)


class _SplitSequence(torch.autograd.Function):
    """split in forward, all-gather in backward"""

    @staticmethod
    def forward(ctx, x):
        return _split_seq(x)

    @staticmethod
    def backward(ctx, g):
        return _all_gather_seq(g)


class _GatherReplicated(torch.autograd.Function):
    """all-gather in forward, split in backward: for a replicated consumer"""

    @staticmethod
    def forward(ctx, x):
        return _all_gather_seq(x)

    @staticmethod
    def backward(ctx, g):
        return _split_seq(g)


split_sequence = _SplitSequence.apply
gather_replicated = _GatherReplicated.apply


class ColumnParallelLinear(nn.Module):
    def __init__(self, din: int, dout: int, stride: int = 1):
        super().__init__()
        full = nn.init.normal_(torch.empty(dout, din), std=0.05)
        shard = full.view(stride, dout // stride, din).chunk(tp_size(), dim=1)[tp_rank()]
        self.weight = nn.Parameter(shard.reshape(-1, din).clone())
        self.weight.tensor_parallel = True

    def forward(self, x):
        return _GatherForColumn.apply(x) @ self.weight.t()


class RowParallelLinear(nn.Module):
    def __init__(self, din: int, dout: int):
        super().__init__()
        full = nn.init.normal_(torch.empty(dout, din), std=0.05)
        self.weight = nn.Parameter(full.chunk(tp_size(), dim=1)[tp_rank()].clone())
        self.weight.tensor_parallel = True

    def forward(self, x):
        return _ScatterFromRow.apply(x @ self.weight.t())


class LayerNorm(nn.LayerNorm):
    def __init__(self, dim: int, sequence_parallel: bool = False):
        super().__init__(dim)
        for p in self.parameters():
            p.sequence_parallel = sequence_parallel


def allreduce_sequence_parallel_grads(module: nn.Module):
    grads = [p.grad for p in module.parameters()
             if getattr(p, "sequence_parallel", False) and p.grad is not None]
    if not grads:
        return
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, group=_TP)
    off = 0
    for g in grads:
        g.copy_(flat[off:off + g.numel()].view_as(g))
        off += g.numel()


def global_grad_norm(module: nn.Module) -> torch.Tensor:
    sharded, shared = torch.zeros(()), torch.zeros(())
    for p in module.parameters():
        if p.grad is None:
            continue
        if getattr(p, "tensor_parallel", False):
            sharded += p.grad.pow(2).sum()
        else:
            shared += p.grad.pow(2).sum()
    dist.all_reduce(sharded, group=_TP)
    return (sharded + shared).sqrt()
