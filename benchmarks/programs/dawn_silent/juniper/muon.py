"""Muon with the matrices dealt out over ranks: the owner keeps the momentum and sends the finished update."""
import torch
import torch.distributed as dist


def orthogonalise(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    if flip:
        x = x.t()
    for _ in range(steps):
        m = x @ x.t()
        x = a * x + (b * m + c * m @ m) @ x
    return x.t() if flip else x


class ShardedMuon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(list(params), dict(lr=lr, momentum=momentum))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                owner = i % self.world
                g = p.grad.clone()
                dist.reduce(g, dst=owner)
                if owner == self.rank:
                    g /= self.world
                    buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buf.lerp_(g, 1 - group["momentum"])
                    update = orthogonalise(g.lerp(buf, group["momentum"]))
                    update *= max(1, p.size(0) / p.size(1)) ** 0.5
                else:
                    update = torch.empty_like(p)
                dist.broadcast(update, src=owner)
                p.add_(update, alpha=-group["lr"])


def average_gradients(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
