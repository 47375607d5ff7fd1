import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Enter(torch.autograd.Function):
    """identity forward, sum backward"""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class _Leave(torch.autograd.Function):
    """sum forward, identity backward"""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class RandomStates:
    """Two random streams: the default one is the same on every rank, the inner one is not."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        keep = torch.get_rng_state()
        torch.manual_seed(seed + 2718 + dist.get_rank())
        self.inner = torch.get_rng_state()
        torch.set_rng_state(keep)

    @contextlib.contextmanager
    def fork(self):
        outer = torch.get_rng_state()
        torch.set_rng_state(self.inner)
        try:
            yield
        finally:
            self.inner = torch.get_rng_state()
            torch.set_rng_state(outer)


def cut(full, dim):
    return nn.Parameter(full.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone())


class ShardedAttention(nn.Module):
    def __init__(self, dim, heads, p, states):
        super().__init__()
        self.heads, self.p, self.states = heads // dist.get_world_size(), p, states
        whole = [nn.Linear(dim, dim) for _ in range(4)]     # drawn whole on every rank, then cut
        self.wq, self.wk, self.wv = (cut(m.weight.detach(), 0) for m in whole[:3])
        self.wo, self.bo = cut(whole[3].weight.detach(), 1), nn.Parameter(whole[3].bias.detach())

    def forward(self, x):
        x = _Enter.apply(x)
        b, t, _ = x.shape
        q, k, v = (F.linear(x, w).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        a = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        with self.states.fork():
            a = F.dropout(a, self.p, self.training)
        out = F.linear((a @ v).transpose(1, 2).reshape(b, t, -1), self.wo)
        return _Leave.apply(out) + self.bo


class ShardedMLP(nn.Module):
    def __init__(self, dim, hidden, p, states):
        super().__init__()
        self.p, self.states = p, states
        up, down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.w1, self.b1 = cut(up.weight.detach(), 0), cut(up.bias.detach(), 0)
        self.w2, self.b2 = cut(down.weight.detach(), 1), nn.Parameter(down.bias.detach())

    def forward(self, x):
        h = F.gelu(F.linear(_Enter.apply(x), self.w1, self.b1))
        with self.states.fork():
            h = F.dropout(h, self.p, self.training)
        return _Leave.apply(F.linear(h, self.w2)) + self.b2
