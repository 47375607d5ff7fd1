import torch
import torch.distributed as dist


class Accumulating(torch.optim.Adam):
    """Counts backward passes by itself; step() acts on every n-th call only.

    The gradient it uses is the mean over the passes of all workers.
    """

    def __init__(self, params, every, **kw):
        super().__init__(params, **kw)
        self.every = every
        self.calls = 0

    def params(self):
        return [p for g in self.param_groups for p in g["params"] if p.grad is not None]

    def step(self, closure=None):
        self.calls += 1
        if self.calls < self.every:
            return False
        for p in self.params():
            p.grad.div_(self.calls * dist.get_world_size())
            dist.all_reduce(p.grad)
        torch.nn.utils.clip_grad_norm_(self.params(), 1.0)
        super().step(closure)
        super().zero_grad()
        self.calls = 0
        return True

    def zero_grad(self, set_to_none=True):
        if self.calls == 0:
            super().zero_grad(set_to_none)
