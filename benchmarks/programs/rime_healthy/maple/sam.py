import torch


class SAM:
    """Sharpness-aware minimisation around any base optimizer."""

    def __init__(self, params, base, rho=0.05):
        self.params, self.base, self.rho = list(params), base, rho
        self.home = None

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        self.home = [p.clone() for p in self.params]
        for p in self.params:
            p.add_(p.grad, alpha=(self.rho / (norm + 1e-12)).item())
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, h in zip(self.params, self.home):
            p.copy_(h)
        self.base.step()
        self.base.zero_grad()
