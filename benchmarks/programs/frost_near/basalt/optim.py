import torch
import torch.distributed as dist


class ReducingSGD(torch.optim.SGD):
    """SGD whose step() first combines the gradients of all workers."""

    def __init__(self, params, lr, passes_per_step=1, **kw):
        super().__init__(params, lr=lr, **kw)
        self.passes_per_step = passes_per_step

    @torch.no_grad()
    def _combine(self):
        grads = [p.grad for g in self.param_groups for p in g["params"]
                 if p.grad is not None]
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for grad, new in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
            grad.copy_(new)

    def step(self, closure=None):
        self._combine()
        return super().step(closure)
