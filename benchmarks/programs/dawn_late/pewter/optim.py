import torch
import torch.distributed as dist


class AccumulatingSGD(torch.optim.SGD):
    """SGD that knows how many backward passes went into .grad: step() reduces over the ranks and takes
    the mean over passes and ranks before the update."""

    def __init__(self, params, **kw):
        super().__init__(params, **kw)
        self.passes = 0

    def count(self):
        self.passes += 1

    @torch.no_grad()
    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat)
        flat.div_(self.passes * dist.get_world_size())
        start = 0
        for g in grads:
            g.copy_(flat[start:start + g.numel()].view_as(g))
            start += g.numel()
        self.passes = 0
        return super().step(closure)
