import contextlib

import torch


class SAM:
    """Sharpness-aware minimisation around a base optimizer; two passes for one update."""

    def __init__(self, model, base, rho=0.05):
        self.model, self.base, self.rho = model, base, rho
        self.shift = {}

    @torch.no_grad()
    def climb(self):
        grads = [p.grad for p in self.model.parameters()]
        scale = self.rho / (torch.stack([g.norm() for g in grads]).norm() + 1e-12)
        for p in self.model.parameters():
            self.shift[p] = p.grad * scale
            p.add_(self.shift[p])
            p.grad = None

    @torch.no_grad()
    def descend(self):
        for p, s in self.shift.items():
            p.sub_(s)
        self.shift.clear()
        self.base.step()
        self.base.zero_grad()


@contextlib.contextmanager
def frozen_statistics(model):
    """The second pass leaves BatchNorm's running statistics alone."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    saved = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 0.0
    yield
    for m, v in zip(norms, saved):
        m.momentum = v
