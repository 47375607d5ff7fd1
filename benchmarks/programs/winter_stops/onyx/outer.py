"""Low-communication outer optimiser: the averaged delta of one round is applied while the next round is under way."""
import torch
import torch.distributed as dist


class DelayedOuter:
    def __init__(self, params, lr=0.7, momentum=0.8):
        self.params = list(params)
        self.world = dist.get_world_size()
        self.anchor = [p.detach().clone() for p in self.params]
        self.velocity = [torch.zeros_like(p) for p in self.params]
        self.lr, self.momentum = lr, momentum
        self.pending = None

    @torch.no_grad()
    def launch(self):
        """Starts averaging the distance covered since the last anchor; returns at once."""
        if self.pending is not None:
            raise RuntimeError("the previous round was not applied")
        deltas = [a - p for a, p in zip(self.anchor, self.params)]
        works = [dist.all_reduce(d, async_op=True) for d in deltas]
        self.pending = (works, deltas, [p.detach().clone() for p in self.params])

    @torch.no_grad()
    def apply(self):
        """Finishes the round launched earlier and rebases the steps made in the meantime."""
        works, deltas, at_launch = self.pending
        for work in works:
            work.wait()
        for i, p in enumerate(self.params):
            step = deltas[i] / self.world
            self.velocity[i].mul_(self.momentum).add_(step)
            new = self.anchor[i] - self.lr * (step + self.momentum * self.velocity[i])
            since = p - at_launch[i]
            self.anchor[i].copy_(new)
            p.copy_(new + since)
        self.pending = None

    @torch.no_grad()
    def finish(self):
        if self.pending is not None:
            self.apply()
        for p in self.params:
            dist.all_reduce(p)
            p /= self.world
