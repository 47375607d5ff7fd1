import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class RingAverager:
    """Averages parameters with both neighbours on a ring of workers.

    Every edge of the ring owns a two-member process group; a worker mixes over each
    of its two edges once per round.
    """

    def __init__(self, rank, world):
        groups = [dist.new_group([i, (i + 1) % world]) for i in range(world)]
        mine = ((rank - 1) % world, rank)
        self.edges = [groups[i] for i in mine]

    @torch.no_grad()
    def mix(self, params):
        params = list(params)
        flat = parameters_to_vector(params)
        for group in self.edges:
            dist.all_reduce(flat, group=group)
            flat /= 2
        vector_to_parameters(flat, params)


def consensus_gap(params):
    flat = parameters_to_vector([p.detach() for p in params])
    mean = flat.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    gap = (flat - mean).norm()
    dist.all_reduce(gap, op=dist.ReduceOp.MAX)
    return gap.item()
