import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class RingMixer:
    """Symmetric ring averaging: w <- (w_left + w + w_right) / 3 after every local step."""

    def __init__(self, model):
        self.model = model
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left = (self.rank - 1) % self.world
        self.right = (self.rank + 1) % self.world

    @torch.no_grad()
    def mix(self):
        mine = parameters_to_vector(self.model.parameters())
        from_left, from_right = torch.empty_like(mine), torch.empty_like(mine)
        ops = [
            dist.P2POp(dist.isend, mine, self.right, tag=1),
            dist.P2POp(dist.isend, mine, self.left, tag=2),
            dist.P2POp(dist.irecv, from_left, self.left, tag=1),
            dist.P2POp(dist.irecv, from_right, self.right, tag=2),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        vector_to_parameters((mine + from_left + from_right) / 3, self.model.parameters())

    @torch.no_grad()
    def consensus_distance(self):
        mine = parameters_to_vector(self.model.parameters())
        mean = mine.clone()
        dist.all_reduce(mean)
        gap = (mine - mean / self.world).norm()
        dist.all_reduce(gap, op=dist.ReduceOp.MAX)
        return gap.item()

    @torch.no_grad()
    def average_all(self):
        vec = parameters_to_vector(self.model.parameters())
        dist.all_reduce(vec)
        vector_to_parameters(vec / self.world, self.model.parameters())
