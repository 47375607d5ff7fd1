import torch


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation around a base optimizer."""

    def __init__(self, params, base, rho=0.05, adaptive=False, **kw):
        super().__init__(params, dict(rho=rho, adaptive=adaptive, **kw))
        self.base_optimizer = base(self.param_groups, **kw)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old"] = p.clone()
                p.add_((p.square() if group["adaptive"] else 1.0) * p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(self.state[p].pop("old"))
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        raise RuntimeError("use first_step / second_step")

    def _grad_norm(self):
        norms = [((p.abs() if g["adaptive"] else 1.0) * p.grad).norm()
                 for g in self.param_groups for p in g["params"] if p.grad is not None]
        return torch.stack(norms).norm()
