"""Muon with the work dealt out over the processes (modded-nanogpt layout).

Gradients are summed by the owner of a matrix only (reduce to owner), the owner keeps the momentum,
orthogonalises and broadcasts the new weights. Vectors and embeddings go to an AdamW that every
process runs on all-reduced gradients.
"""
import torch
import torch.distributed as dist


def zeropower_via_newtonschulz5(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, nesterov=True):
        params = sorted(params, key=lambda p: -p.numel())
        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def owner(self, index):
        # snake order keeps the load even
        lap, pos = divmod(index, self.world)
        return pos if lap % 2 == 0 else self.world - 1 - pos

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            works = [dist.reduce(p.grad, dst=self.owner(i), async_op=True) for i, p in enumerate(group["params"])]
            casts = []
            for i, (p, w) in enumerate(zip(group["params"], works)):
                w.wait()
                if self.owner(i) == self.rank:
                    g = p.grad / self.world
                    buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(g))
                    buf.lerp_(g, 1 - group["momentum"])
                    g = g.lerp(buf, group["momentum"]) if group["nesterov"] else buf
                    scale = max(1, p.shape[0] / p.shape[1]) ** 0.5
                    p.add_(zeropower_via_newtonschulz5(g), alpha=-group["lr"] * scale)
                casts.append(dist.broadcast(p.data, src=self.owner(i), async_op=True))
            for c in casts:
                c.wait()
