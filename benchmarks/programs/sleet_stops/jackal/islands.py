import dataclasses

import torch
import torch.distributed as dist


@dataclasses.dataclass
class Island:
    """A clinic: a few ranks that train together; clinics only exchange weights."""

    index: int
    members: list
    group: object
    leaders: object

    @property
    def here(self):
        return dist.get_rank(self.group)

    @property
    def lead(self):
        return self.here == 0

    def mean_grads(self, net):
        for p in net.parameters():
            dist.all_reduce(p.grad, group=self.group)
            p.grad.div_(len(self.members))

    def collect(self, obj):
        """Objects of all members at the lead, None elsewhere."""
        box = [None] * len(self.members) if self.lead else None
        dist.gather_object(obj, box, dst=0, group=self.group)
        return box

    def exchange(self, net, count):
        flat = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
        if self.lead:
            weight = torch.tensor([float(count)])
            flat = flat * weight
            dist.all_reduce(flat, group=self.leaders)
            dist.all_reduce(weight, group=self.leaders)
            flat /= weight
        dist.broadcast(flat, src=self.members[0], group=self.group)
        torch.nn.utils.vector_to_parameters(flat, net.parameters())


def make_islands(width):
    world, rank = dist.get_world_size(), dist.get_rank()
    blocks = [list(range(i, i + width)) for i in range(0, world, width)]
    groups = [dist.new_group(b) for b in blocks]
    leaders = dist.new_group([b[0] for b in blocks])
    k = rank // width
    return Island(k, blocks[k], groups[k], leaders)
