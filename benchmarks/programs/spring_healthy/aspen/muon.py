import torch
import torch.distributed as dist


def orthogonalise(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.T if g.size(0) > g.size(1) else g
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if g.size(0) > g.size(1) else x


class DistMuon(torch.optim.Optimizer):
    """Muon with the orthogonalisation work spread over ranks.

    Every matrix has one owner. Gradients travel to the owner only, the owner keeps the
    momentum and computes the update, the new weight travels back.
    """

    def __init__(self, params, lr=0.02, momentum=0.95, nesterov=True):
        params = sorted(params, key=lambda p: p.numel(), reverse=True)
        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        load = [0] * self.world
        self.owner = {}
        for p in params:
            dst = min(range(self.world), key=lambda r: (load[r], r))
            self.owner[p] = dst
            load[dst] += p.numel() * min(p.shape)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            inbound = [dist.reduce(p.grad, dst=self.owner[p], async_op=True) for p in group["params"]]
            outbound = []
            for p, work in zip(group["params"], inbound):
                work.wait()
                if self.owner[p] == self.rank:
                    g = p.grad / self.world
                    buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buf.lerp_(g, 1 - group["momentum"])
                    g = g.lerp(buf, group["momentum"]) if group["nesterov"] else buf
                    scale = max(1.0, p.size(0) / p.size(1)) ** 0.5
                    p.add_(orthogonalise(g), alpha=-group["lr"] * scale)
            for p in group["params"]:
                outbound.append(dist.broadcast(p, src=self.owner[p], async_op=True))
            for work in outbound:
                work.wait()
