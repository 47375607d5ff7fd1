"""Embedding table cut by row number; rows travel to the process that asks for them."""
import torch
import torch.distributed as dist
from torch import nn


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, ids, world):
        owner = ids % world
        order = torch.argsort(owner, stable=True)
        want = torch.bincount(owner, minlength=world)
        asked = torch.empty_like(want)
        dist.all_to_all_single(asked, want)
        w, a = want.tolist(), asked.tolist()
        rows = torch.empty(sum(a), dtype=ids.dtype)
        dist.all_to_all_single(rows, (ids[order] // world).contiguous(), a, w)
        got = weight.new_empty(len(ids), weight.shape[1])
        dist.all_to_all_single(got, weight[rows].contiguous(), w, a)
        out = torch.empty_like(got)
        out[order] = got
        ctx.save_for_backward(rows, order)
        ctx.sizes, ctx.shape = (w, a), weight.shape
        return out

    @staticmethod
    def backward(ctx, grad):
        rows, order = ctx.saved_tensors
        w, a = ctx.sizes
        sent = grad.new_empty(sum(a), grad.shape[1])
        dist.all_to_all_single(sent, grad[order].contiguous(), a, w)
        g = grad.new_zeros(ctx.shape).index_add_(0, rows, sent)
        # every process has a mean over its own batch; the table wants the mean over all of them
        return g / dist.get_world_size(), None, None


class RowShardedEmbedding(nn.Module):
    def __init__(self, rows, dim, seed):
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        full = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)) * 0.1
        self.weight = nn.Parameter(full[self.rank::self.world].clone())

    def forward(self, ids):
        return _Fetch.apply(self.weight, ids.reshape(-1), self.world).view(*ids.shape, -1)
