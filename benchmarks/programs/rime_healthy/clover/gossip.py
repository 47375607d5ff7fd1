import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class HypercubeMixer:
    """Pairwise averaging over a hypercube; the peer changes each step."""

    def __init__(self, model):
        self.model = model
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        assert self.world & (self.world - 1) == 0, "power of two workers"
        self.dims = self.world.bit_length() - 1
        self.t = 0
        self.inbox = torch.empty_like(parameters_to_vector(model.parameters()).detach())

    def peer(self):
        return self.rank ^ (1 << (self.t % self.dims))

    @torch.no_grad()
    def mix(self):
        mine = parameters_to_vector(self.model.parameters())
        p = self.peer()
        out = dist.isend(mine, p)
        dist.recv(self.inbox, p)
        out.wait()
        vector_to_parameters((mine + self.inbox) / 2, self.model.parameters())
        self.t += 1

    @torch.no_grad()
    def consensus_error(self):
        v = parameters_to_vector(self.model.parameters())
        mean = v.clone()
        dist.all_reduce(mean)
        mean /= self.world
        err = ((v - mean) ** 2).sum()
        dist.all_reduce(err)
        return (err / self.world).sqrt().item(), mean
