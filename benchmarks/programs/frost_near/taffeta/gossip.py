import torch
import torch.distributed as dist


class RingGossip:
    """Mixes the weights with one neighbour after each update, to the left and right in turn."""

    def __init__(self, module, weight=0.5):
        self.params = list(module.parameters())
        self.weight = weight
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.round = 0

    @torch.no_grad()
    def mix(self):
        hop = 1 if self.round % 2 == 0 else -1
        flat = torch.cat([p.flatten() for p in self.params])
        other = torch.empty_like(flat)
        ops = [dist.P2POp(dist.isend, flat, (self.rank + hop) % self.world),
               dist.P2POp(dist.irecv, other, (self.rank - hop) % self.world)]
        for req in dist.batch_isend_irecv(ops):
            req.wait()
        self._assign(torch.lerp(flat, other, self.weight))
        self.round += 1

    @torch.no_grad()
    def consensus(self):
        flat = torch.cat([p.flatten() for p in self.params])
        mean = flat.clone()
        dist.all_reduce(mean)
        mean /= self.world
        gap = (flat - mean).norm()
        self._assign(mean)
        return gap

    def _assign(self, flat):
        offset = 0
        for p in self.params:
            p.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
