import torch


class RunningNorm:
    """Observation normaliser; every worker sees another environment and keeps its own statistics."""

    def __init__(self, dim):
        self.count = 1e-4
        self.mean = torch.zeros(dim)
        self.var = torch.ones(dim)

    def update(self, x):
        n, m, v = len(x), x.mean(0), x.var(0, unbiased=False)
        total = self.count + n
        delta = m - self.mean
        self.var = (self.var * self.count + v * n + delta ** 2 * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total

    def __call__(self, x):
        return (x - self.mean) / (self.var + 1e-6).sqrt()
