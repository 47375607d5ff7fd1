import torch
import torch.distributed as dist


def orthogonalise(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    if flip:
        x = x.t()
    for _ in range(steps):
        m = x @ x.t()
        x = a * x + (b * m + c * m @ m) @ x
    return x.t() if flip else x


class Muon(torch.optim.Optimizer):
    """Momentum + Newton-Schulz for matrices; each matrix is owned by one process.

    The owner keeps the momentum and computes the update, afterwards the new
    weights go around in one flat message per owner.
    """

    def __init__(self, params, lr=0.02, momentum=0.95, nesterov=True, steps=5):
        params = list(params)
        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov, steps=steps))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        load = [0] * self.world
        self.owner = {}
        for p in sorted(params, key=lambda p: -p.numel()):
            o = load.index(min(load))
            load[o] += p.numel() * min(p.shape)
            self.owner[p] = o

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or self.owner[p] != self.rank:
                    continue
                state = self.state[p]
                if not state:
                    state["buf"] = torch.zeros_like(p)
                buf = state["buf"]
                buf.mul_(group["momentum"]).add_(p.grad)
                g = p.grad.add(buf, alpha=group["momentum"]) if group["nesterov"] else buf
                u = orthogonalise(g, group["steps"])
                p.add_(u, alpha=-group["lr"] * max(1.0, p.size(0) / p.size(1)) ** 0.5)
            self._share(group["params"])

    def _share(self, params):
        works = []
        for owner in range(self.world):
            mine = [p for p in params if self.owner[p] == owner]
            if not mine:
                continue
            flat = torch.cat([p.reshape(-1) for p in mine])
            works.append((dist.broadcast(flat, src=owner, async_op=True), owner, mine, flat))
        for work, owner, mine, flat in works:
            work.wait()
            if owner != self.rank:
                for p, part in zip(mine, flat.split([p.numel() for p in mine])):
                    p.copy_(part.view_as(p))
