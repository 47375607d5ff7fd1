import contextlib

import torch
import torch.distributed as dist
from torch import nn


class Streams:
    """Two random streams: `common` is equal on all processes, `own` is not."""

    def __init__(self, seed, rank):
        self.states = {}
        keep = torch.get_rng_state()
        for name, s in (("common", seed), ("own", seed + 5000 + rank)):
            torch.manual_seed(s)
            self.states[name] = torch.get_rng_state()
        torch.set_rng_state(keep)

    @contextlib.contextmanager
    def use(self, name):
        keep = torch.get_rng_state()
        torch.set_rng_state(self.states[name])
        try:
            yield
        finally:
            self.states[name] = torch.get_rng_state()
            torch.set_rng_state(keep)


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class SplitFFN(nn.Module):
    def __init__(self, width, hidden, streams, drop):
        super().__init__()
        n = hidden // dist.get_world_size()
        with streams.use("own"):
            self.up, self.down = nn.Linear(width, n), nn.Linear(n, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))
        self.streams, self.drop = streams, drop
        for p in (self.up.weight, self.up.bias, self.down.weight):
            p.shard = True

    def forward(self, x):
        h = torch.relu(self.up(Enter.apply(x)))
        if self.training:
            with self.streams.use("own"):
                h = torch.dropout(h, self.drop, True)
        y = Leave.apply(self.down(h)) + self.bias
        if self.training:
            with self.streams.use("common"):
                y = torch.dropout(y, self.drop, True)
        return y


class VocabParallelHead(nn.Module):
    """Each process scores its slice of the vocabulary; the softmax runs over all slices."""

    def __init__(self, width, vocab, streams):
        super().__init__()
        self.size = vocab // dist.get_world_size()
        self.first = dist.get_rank() * self.size
        with streams.use("own"):
            self.weight = nn.Parameter(torch.randn(self.size, width) * 0.1)
        self.weight.shard = True

    def forward(self, h, target):
        z = Enter.apply(h) @ self.weight.t()
        top = z.detach().amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        total = Leave.apply((z - top[..., None]).exp().sum(-1))
        local = target - self.first
        mine = (local >= 0) & (local < self.size)
        picked = z.gather(-1, local.clamp(0, self.size - 1)[..., None]).squeeze(-1) - top
        return (total.log() - Leave.apply(picked * mine)).mean()


def clip_(params, limit):
    shared, split = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for p in params:
        bucket = split if getattr(p, "shard", False) else shared
        bucket += p.grad.double().square().sum()
    dist.all_reduce(split)
    norm = (shared + split).sqrt().item()
    if norm > limit:
        for p in params:
            p.grad.mul_(limit / norm)
    return norm
