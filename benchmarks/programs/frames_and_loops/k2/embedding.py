import torch
import torch.distributed as dist
import torch.nn as nn


class _Exchange(torch.autograd.Function):
    """all_to_all of rows; the gradient takes the same way back."""

    @staticmethod
    def forward(ctx, rows, send, recv):
        ctx.send, ctx.recv = send, recv
        out = rows.new_empty(sum(recv), rows.size(1))
        dist.all_to_all_single(out, rows.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(sum(ctx.send), grad.size(1))
        dist.all_to_all_single(back, grad.contiguous(), ctx.send, ctx.recv)
        return back, None, None


class RowShardedEmbedding(nn.Module):
    """Row r lives on process r % world. Every process asks the owners for its rows."""

    def __init__(self, rows, dim, seed):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        g = torch.Generator().manual_seed(seed)
        full = 0.1 * torch.randn(rows, dim, generator=g)
        self.local = nn.Embedding.from_pretrained(full[self.rank :: self.world].clone(), freeze=False, sparse=True)

    def forward(self, ids):
        flat = ids.reshape(-1)
        uniq, inverse = flat.unique(return_inverse=True)
        owner = uniq % self.world
        order = torch.argsort(owner, stable=True)
        want = uniq[order]
        counts = torch.bincount(owner, minlength=self.world)
        asked = torch.empty_like(counts)
        dist.all_to_all_single(asked, counts)
        need, give = counts.tolist(), asked.tolist()
        requests = want.new_empty(sum(give))
        dist.all_to_all_single(requests, want, give, need)
        rows = self.local(requests // self.world)
        got = _Exchange.apply(rows, give, need)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return got[back][inverse].view(*ids.shape, -1)
