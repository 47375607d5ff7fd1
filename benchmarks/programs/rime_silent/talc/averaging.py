import torch
import torch.distributed as dist


class PeriodicAverager:
    """Outer loop of local SGD: mean of the parameter change every `period` steps, with outer momentum."""

    def __init__(self, model, period, outer_lr=0.8, outer_momentum=0.5):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.period = period
        self.anchor = torch.cat([p.detach().flatten() for p in self.params]).clone()
        self.velocity = torch.zeros_like(self.anchor)
        self.lr, self.momentum = outer_lr, outer_momentum
        self.inner = 0

    @torch.no_grad()
    def _write(self, flat):
        offset = 0
        for p in self.params:
            p.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()

    @torch.no_grad()
    def sync(self):
        if self.inner == 0:
            return
        delta = torch.cat([p.detach().flatten() for p in self.params]) - self.anchor
        dist.all_reduce(delta)
        delta /= dist.get_world_size()
        self.velocity.mul_(self.momentum).add_(delta)
        self.anchor += self.lr * self.velocity
        self._write(self.anchor)
        self.inner = 0

    def step(self):
        self.inner += 1
        if self.inner == self.period:
            self.sync()
