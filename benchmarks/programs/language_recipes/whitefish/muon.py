"""Orthogonalised momentum with the work divided over the ranks."""
import torch
import torch.distributed as dist


def newton_schulz(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.shape[0] > x.shape[1]
    x = x.t() if flip else x
    for _ in range(steps):
        s = x @ x.t()
        x = a * x + (b * s + c * s @ s) @ x
    return x.t() if flip else x


class DistributedMuon(torch.optim.Optimizer):
    """Matrices are dealt out by size; the owner keeps the momentum, computes the new
    value and broadcasts it. Other ranks hold no state for that matrix."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(list(params), dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        load = [0] * self.world
        self.owner = {}
        every = [p for g in self.param_groups for p in g["params"]]
        for p in sorted(every, key=lambda q: -q.numel()):
            r = load.index(min(load))
            self.owner[p] = r
            load[r] += p.numel() * min(p.shape)

    @torch.no_grad()
    def step(self, closure=None):
        work = []
        for group in self.param_groups:
            for p in group["params"]:
                if self.owner[p] == self.rank:
                    st = self.state[p]
                    if "m" not in st:
                        st["m"] = torch.zeros_like(p)
                    st["m"].mul_(group["momentum"]).add_(p.grad)
                    upd = newton_schulz(p.grad.add(st["m"], alpha=group["momentum"]))
                    scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(upd, alpha=-group["lr"] * scale)
                work.append(dist.broadcast(p.data, src=self.owner[p], async_op=True))
        for w in work:
            w.wait()
