"""Optimizer-state sharding: each rank owns a subset of the parameters."""
import torch
import torch.distributed as dist


def assign_owners(params, world):
    loads = [0] * world
    owner = {}
    for p in sorted(params, key=lambda q: -q.numel()):
        r = loads.index(min(loads))
        owner[p] = r
        loads[r] += p.numel()
    return owner


class ShardedOptimizer(torch.optim.Optimizer):
    def __init__(self, params, inner_cls, **kw):
        params = list(params)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.owner = assign_owners(params, self.world)
        super().__init__(params, dict(kw))
        own = [p for p in params if self.owner[p] == self.rank]
        self.inner = inner_cls(own, **kw)

    def all_params(self):
        for g in self.param_groups:
            yield from g["params"]

    @torch.no_grad()
    def reduce_gradients(self):
        for p in self.all_params():
            p.grad.div_(self.world)
            dist.reduce(p.grad, dst=self.owner[p])
            if self.owner[p] != self.rank:
                p.grad = None

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        for p in self.all_params():
            dist.broadcast(p.data, src=self.owner[p])
