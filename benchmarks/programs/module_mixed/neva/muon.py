import torch
import torch.distributed as dist


def orthogonalise(g, steps=4):
    """Newton-Schulz iteration towards the nearest (semi-)orthogonal matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    x = x.T if flip else x
    for _ in range(steps):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    """Matrices only. The update of each matrix is computed on one rank and gathered by all."""

    def __init__(self, params, lr=0.02, momentum=0.9, group=None):
        by_shape = {}
        for p in params:
            by_shape.setdefault(tuple(p.shape), []).append(p)
        super().__init__([{"params": v} for v in by_shape.values()], dict(lr=lr, momentum=momentum))
        self.pg = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = group["params"]
            pad = (-len(params)) % self.world
            padded = params + [torch.empty_like(params[-1]) for _ in range(pad)]
            for base in range(0, len(params), self.world):
                if base + self.rank < len(params):
                    p = params[base + self.rank]
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["momentum_buffer"] = torch.zeros_like(p)
                    buf = state["momentum_buffer"].mul_(group["momentum"]).add_(p.grad)
                    update = orthogonalise(p.grad.add(buf, alpha=group["momentum"]))
                    p.add_(update, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)
                block = padded[base:base + self.world]
                gathered = [torch.empty_like(q) for q in block]
                dist.all_gather(gathered, padded[base + self.rank].contiguous(), group=self.pg)
                for q, new in zip(block, gathered):
                    q.copy_(new)
