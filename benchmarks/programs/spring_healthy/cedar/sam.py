import torch


class SAM:
    """Sharpness-aware step around a base optimizer (https://arxiv.org/abs/2010.01412).

    The climb uses the gradient of the local mini-batch, as in the paper's multi-accelerator
    runs; only the gradient at the climbed point is averaged.
    """

    def __init__(self, ddp, base, rho=0.05, adaptive=False):
        self.ddp, self.base, self.rho, self.adaptive = ddp, base, rho, adaptive
        self.params = [p for p in ddp.parameters() if p.requires_grad]
        self.home = [torch.empty_like(p) for p in self.params]

    @torch.no_grad()
    def climb(self):
        factor = [p.abs() if self.adaptive else 1.0 for p in self.params]
        norm = torch.stack([(f * p.grad).norm() for f, p in zip(factor, self.params)]).norm()
        for p, f, h in zip(self.params, factor, self.home):
            h.copy_(p)
            p.add_(f * f * p.grad if self.adaptive else p.grad, alpha=(self.rho / (norm + 1e-12)).item())
        return norm

    @torch.no_grad()
    def descend(self):
        for p, h in zip(self.params, self.home):
            p.copy_(h)
        self.base.step()

    def step(self, closure):
        self.base.zero_grad(set_to_none=True)
        with self.ddp.no_sync():
            first = closure()
            first.backward()
        self.climb()
        self.base.zero_grad(set_to_none=True)
        second = closure()
        second.backward()
        self.descend()
        return first.detach(), second.detach()
