import torch
import torch.distributed as dist
import torch.nn as nn


class ShardedEMA:
    """The average of the weights, of which every rank holds only its part."""

    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        flat = nn.utils.parameters_to_vector(model.parameters()).detach()
        self.size = -(-flat.numel() // self.world)
        self.part = self._slice(flat).clone()
        self.total = flat.numel()

    def _slice(self, flat):
        pad = self.size * self.world - flat.numel()
        flat = torch.cat([flat, flat.new_zeros(pad)])
        return flat[self.rank * self.size:(self.rank + 1) * self.size]

    @torch.no_grad()
    def update(self, model):
        flat = nn.utils.parameters_to_vector(model.parameters())
        self.part.lerp_(self._slice(flat), 1 - self.decay)

    @torch.no_grad()
    def gather_into(self, model):
        parts = [torch.empty_like(self.part) for _ in range(self.world)]
        dist.all_gather(parts, self.part)
        nn.utils.vector_to_parameters(torch.cat(parts)[:self.total], model.parameters())
