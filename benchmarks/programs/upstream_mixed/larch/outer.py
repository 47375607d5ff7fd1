import torch
import torch.distributed as dist


class OuterOptimizer:
    """Every `period` inner steps: average the workers' displacement and step with Nesterov momentum."""

    def __init__(self, params, period, lr=0.7, momentum=0.9):
        self.params = list(params)
        self.period = period
        self.anchor = [torch.nn.Parameter(p.detach().clone()) for p in self.params]
        self.optimizer = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def maybe_step(self, step):
        if step % self.period:
            return False
        flat = torch.cat([(a - p).flatten() for a, p in zip(self.anchor, self.params)])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for a in self.anchor:
            a.grad = flat[at:at + a.numel()].view_as(a).clone()
            at += a.numel()
        self.optimizer.step()
        for a, p in zip(self.anchor, self.params):
            p.copy_(a)
        return True
