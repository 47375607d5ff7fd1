import torch


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, eta=0.02, weight_decay=1e-4):
        super().__init__(params, dict(lr=lr, momentum=momentum, eta=eta, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                d = p.grad
                if p.ndim > 1:
                    d = d.add(p, alpha=g["weight_decay"])
                    ratio = g["eta"] * p.norm() / (d.norm() + 1e-8)
                    d = d * ratio.clamp(max=1.0)
                buf = self.state[p].setdefault("mu", torch.zeros_like(p))
                buf.mul_(g["momentum"]).add_(d)
                p.add_(buf, alpha=-g["lr"])
