import torch
import torch.distributed as dist


class OuterNesterov:
    """Treats the mean drift of the workers since the last round as a gradient."""

    def __init__(self, model, lr, momentum):
        self.params = list(model.parameters())
        for p in self.params:
            dist.broadcast(p.data, 0)
        self.anchor = [p.detach().clone() for p in self.params]
        self.optim = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def step(self):
        world = dist.get_world_size()
        flat = torch.cat([(a - p).flatten() for a, p in zip(self.anchor, self.params)])
        dist.all_reduce(flat)
        flat /= world
        offset = 0
        for a in self.anchor:
            a.grad = flat[offset:offset + a.numel()].view_as(a).clone()
            offset += a.numel()
        self.optim.step()
        for a, p in zip(self.anchor, self.params):
            p.copy_(a)
