import torch


class SAM:
    """Sharpness-aware minimisation around an ordinary optimiser."""

    def __init__(self, params, base, rho):
        self.params, self.base, self.rho = list(params), base, rho
        self.kept = []

    @torch.no_grad()
    def climb(self):
        grads = [p.grad for p in self.params]
        norm = torch.stack([g.norm() for g in grads]).norm()
        scale = self.rho / (norm + 1e-12)
        self.kept = []
        for p, g in zip(self.params, grads):
            self.kept.append(p.detach().clone())
            p.add_(g * scale)
        self.zero_grad()
        return norm

    @torch.no_grad()
    def descend(self):
        for p, old in zip(self.params, self.kept):
            p.copy_(old)
        self.kept = []
        self.base.step()
        self.zero_grad()

    def zero_grad(self):
        self.base.zero_grad(set_to_none=True)
