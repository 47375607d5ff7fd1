import functools

import torch
import torch.distributed as dist


class Topology:
    """Ranks are laid out in islands; the first rank of an island is its leader."""

    def __init__(self, island):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.island = island
        self.first = self.rank // island * island
        self.locals = []
        for start in range(0, self.world, island):
            self.locals.append(dist.new_group(list(range(start, start + island))))

    @property
    def local_group(self):
        return self.locals[self.rank // self.island]

    @property
    def is_leader(self):
        return self.rank == self.first

    @functools.cached_property
    def leader_group(self):
        return dist.new_group(list(range(0, self.world, self.island)))


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def unflat(vector, tensors):
    at = 0
    for t in tensors:
        t.copy_(vector[at:at + t.numel()].view_as(t))
        at += t.numel()


def everyone_group():
    return dist.new_group(list(range(dist.get_world_size())))


@torch.no_grad()
def average_gradients(params, topo):
    grads = [p.grad for p in params]
    buf = flat(grads)
    dist.all_reduce(buf, group=topo.local_group)
    unflat(buf / topo.island, grads)


@torch.no_grad()
def average_islands(params, topo):
    data = [p.data for p in params]
    buf = flat(data)
    if topo.is_leader:
        dist.all_reduce(buf, group=topo.leader_group)
        buf /= topo.world // topo.island
    dist.broadcast(buf, src=topo.first, group=topo.local_group)
    unflat(buf, data)
