import torch
import torch.distributed as dist


class OuterStep:
    """Every `period` inner steps the ranks meet: the mean displacement is applied with Nesterov momentum."""

    def __init__(self, params, period, lr=0.7, momentum=0.6):
        self.params = list(params)
        self.period, self.lr, self.momentum = period, lr, momentum
        self.anchor = [p.detach().clone() for p in self.params]
        self.velocity = [torch.zeros_like(p) for p in self.params]
        self.inner = 0
        self.rounds = 0

    @torch.no_grad()
    def tick(self):
        self.inner += 1
        if self.inner % self.period:
            return False
        self.meet()
        return True

    @torch.no_grad()
    def meet(self):
        moved = torch.cat([(a - p).flatten() for a, p in zip(self.anchor, self.params)])
        dist.all_reduce(moved)
        moved /= dist.get_world_size()
        at = 0
        for a, p, v in zip(self.anchor, self.params, self.velocity):
            d = moved[at:at + p.numel()].view_as(p)
            at += p.numel()
            v.mul_(self.momentum).add_(d)
            a.sub_(self.lr * (d + self.momentum * v))
            p.copy_(a)
        self.rounds += 1
