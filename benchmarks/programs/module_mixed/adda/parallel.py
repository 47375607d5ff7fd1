"""Data parallelism by hand, for models that DDP can't trace."""
import torch
import torch.distributed as dist


class GradAverager:
    def __init__(self, model):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.world = dist.get_world_size()

    @torch.no_grad()
    def broadcast(self):
        for p in self.params:
            dist.broadcast(p.data, src=0)

    @torch.no_grad()
    def average(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= self.world
