import torch
import torch.distributed as dist


class TwoLevel:
    """Average inside each box first, then between the first ranks of the boxes, then send it down."""

    def __init__(self, box):
        world, me = dist.get_world_size(), dist.get_rank()
        assert world % box == 0
        self.world = world
        self.leader = me // box * box
        self.is_leader = me == self.leader
        self.local = None
        for first in range(0, world, box):
            g = dist.new_group(list(range(first, first + box)))
            if first == self.leader:
                self.local = g
        self.top = dist.new_group(list(range(0, world, box)))

    def mean_(self, flat):
        dist.reduce(flat, dst=self.leader, group=self.local)
        if self.is_leader:
            dist.all_reduce(flat, group=self.top)
            flat.div_(self.world)
        dist.broadcast(flat, src=self.leader, group=self.local)
        return flat


def flatten_grads(params):
    return torch.cat([p.grad.reshape(-1) for p in params])


def scatter_grads(flat, params):
    at = 0
    for p in params:
        n = p.numel()
        p.grad.copy_(flat[at:at + n].view_as(p))
        at += n
