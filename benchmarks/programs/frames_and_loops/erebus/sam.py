import torch


class SAM:
    """Sharpness-aware minimisation around a base optimizer (adaptive variant optional)."""

    def __init__(self, params, base, rho=0.05, adaptive=False):
        self.params = [p for p in params if p.requires_grad]
        self.base = base
        self.rho = rho
        self.adaptive = adaptive
        self._saved = {}

    def _norm(self):
        terms = []
        for p in self.params:
            if p.grad is None:
                continue
            g = p.grad * p.abs() if self.adaptive else p.grad
            terms.append(g.norm(2))
        return torch.norm(torch.stack(terms), 2)

    @torch.no_grad()
    def ascend(self):
        scale = self.rho / (self._norm() + 1e-12)
        for p in self.params:
            if p.grad is None:
                continue
            e = (p.pow(2) if self.adaptive else 1.0) * p.grad * scale
            self._saved[p] = p.clone()
            p.add_(e)
        self.base.zero_grad(set_to_none=True)

    @torch.no_grad()
    def descend(self):
        for p, w in self._saved.items():
            p.copy_(w)
        self._saved.clear()
        self.base.step()
        self.base.zero_grad(set_to_none=True)
