import time

import torch
import torch.distributed as dist


class OuterOptimizer:
    """Nesterov step on the averaged change of the weights (DiLoCo)."""

    def __init__(self, model, group, lr, momentum):
        self.params = list(model.parameters())
        self.group, self.lr, self.momentum = group, lr, momentum
        self.anchor = [p.detach().clone() for p in self.params]
        self.velocity = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        begin = time.time()
        works = []
        deltas = [a - p for a, p in zip(self.anchor, self.params)]
        for d in deltas:
            works.append(dist.all_reduce(d, group=self.group, async_op=True))
        for w in works:
            w.wait()
        waited = time.time() - begin
        n = self.group.size()
        for p, a, v, d in zip(self.params, self.anchor, self.velocity, deltas):
            v.mul_(self.momentum).add_(d / n)
            a.sub_(self.lr * (d / n + self.momentum * v))
            p.copy_(a)
        return waited
