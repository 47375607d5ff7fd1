import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Exchange(torch.autograd.Function):
    """all_to_all of rows with unequal splits."""

    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.send), g.size(1))
        dist.all_to_all_single(out, g.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class ExpertLayer(nn.Module):
    """Top-1 routing; expert e is stored only on worker e."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.router = nn.Linear(dim, self.world)
        with torch.random.fork_rng():
            torch.manual_seed(31 + self.rank)
            self.expert = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, where = probs.max(-1)
        order = where.argsort(stable=True)
        counts = torch.bincount(where, minlength=self.world)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        send, recv = counts.tolist(), theirs.tolist()
        inbox = _Exchange.apply(x[order], send, recv)
        back = _Exchange.apply(self.expert(inbox), recv, send)
        y = torch.empty_like(back).index_copy(0, order, back)
        load = F.one_hot(where, self.world).float().mean(0)
        aux = self.world * (load.detach() * probs.mean(0)).sum()
        return x + gate[:, None] * y, aux

    def local_parameters(self):
        return list(self.expert.parameters())
