"""Pairwise parameter averaging over a ring of workers."""
import torch
import torch.distributed as dist


class RingGossip:
    def __init__(self, model):
        self.model = model
        self.rank = dist.get_rank()
        n = dist.get_world_size()
        edges = sorted({tuple(sorted((i, (i + 1) % n))) for i in range(n)})
        self.edges = [(e, dist.new_group(list(e))) for e in edges]

    def mix(self):
        flat = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()
        for edge, group in self.edges:
            if self.rank not in edge:
                continue
            dist.all_reduce(flat, group=group)
            flat /= 2
        torch.nn.utils.vector_to_parameters(flat, self.model.parameters())

    def spread(self):
        """Largest distance of any worker from the mean, on every worker."""
        flat = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()
        mean = flat.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        d = (flat - mean).norm()
        dist.all_reduce(d, op=dist.ReduceOp.MAX)
        return d.item()
