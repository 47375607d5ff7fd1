"""Outer loop of low-communication training: average the drift, then a Nesterov step."""
import torch
import torch.distributed as dist


class OuterNesterov:
    """Keeps the last common weights; every rank holds the same copy and the same momentum."""

    def __init__(self, params, lr: float, momentum: float):
        self.params = list(params)
        self.lr, self.momentum = lr, momentum
        self.anchor = [p.detach().clone() for p in self.params]
        self.velocity = [torch.zeros_like(p) for p in self.params]
        self.rounds = 0

    @torch.no_grad()
    def drift(self) -> float:
        """Norm of this worker's displacement since the last round."""
        return sum((a - p).pow(2).sum() for a, p in zip(self.anchor, self.params)).sqrt().item()

    @torch.no_grad()
    def step(self):
        world = dist.get_world_size()
        flat = torch.cat([(a - p).flatten() for a, p in zip(self.anchor, self.params)])
        dist.all_reduce(flat)
        flat /= world
        off = 0
        for p, a, v in zip(self.params, self.anchor, self.velocity):
            g = flat[off:off + p.numel()].view_as(p)
            off += p.numel()
            v.mul_(self.momentum).add_(g)
            a.sub_(self.lr * (g + self.momentum * v))
            p.copy_(a)
        self.rounds += 1
