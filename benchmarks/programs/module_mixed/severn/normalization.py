import torch
import torch.nn as nn


class EmpiricalNormalization(nn.Module):
    """Normalises observations by the mean and deviation of all that were seen so far."""

    def __init__(self, shape, eps=1e-2, until=None):
        super().__init__()
        self.eps, self.until = eps, until
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.tensor(0.0))

    def forward(self, x):
        return (x - self.mean) / (self.var.sqrt() + self.eps)

    @torch.no_grad()
    def update(self, x):
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        n, m, v = float(x.shape[0]), x.mean(0), x.var(0, unbiased=False)
        self.count += n
        rate = n / self.count
        delta = m - self.mean
        self.mean += rate * delta
        self.var += rate * (v - self.var + delta * (m - self.mean))
