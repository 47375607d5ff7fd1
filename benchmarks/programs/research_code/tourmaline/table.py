import torch
import torch.distributed as dist
import torch.nn as nn


class _Exchange(torch.autograd.Function):
    """Sums partial rows over ranks for the ids of all ranks, returns the own ids' rows."""

    @staticmethod
    def forward(ctx, part, n):
        total = part.contiguous().clone()
        dist.all_reduce(total)
        r = dist.get_rank()
        return total[r * n:(r + 1) * n].clone()

    @staticmethod
    def backward(ctx, g):
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, g.contiguous())
        return torch.cat(parts), None


class ShardedTable(nn.Module):
    """Rows lo..hi live on this rank. Every rank must look up the same number of ids."""

    def __init__(self, rows, dim, seed):
        super().__init__()
        r, w = dist.get_rank(), dist.get_world_size()
        per = -(-rows // w)
        self.lo, self.hi = min(r * per, rows), min((r + 1) * per, rows)
        full = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)) * 0.1
        self.weight = nn.Parameter(full[self.lo:self.hi].clone())

    def forward(self, ids):
        parts = [torch.empty_like(ids) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, ids.contiguous())
        every = torch.cat(parts)
        inside = (every >= self.lo) & (every < self.hi)
        rows = self.weight[(every - self.lo).clamp(0, self.hi - self.lo - 1)]
        return _Exchange.apply(torch.where(inside[:, None], rows, torch.zeros_like(rows)), len(ids))

    @torch.no_grad()
    def norm(self):
        s = self.weight.pow(2).sum()
        dist.all_reduce(s)
        return s.sqrt().item()
