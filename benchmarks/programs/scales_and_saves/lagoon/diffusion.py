import math

import torch


class Schedule:
    """Cosine schedule; owns the stream that draws times and noise for training."""

    def __init__(self, steps, seed):
        t = torch.arange(steps + 1) / steps
        f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        self.alpha_bar = (f / f[0])[1:].clamp(1e-4, 0.9999)
        self.steps = steps
        self.gen = torch.Generator().manual_seed(seed)

    def corrupt(self, x):
        t = torch.randint(0, self.steps, (len(x),), generator=self.gen)
        eps = torch.randn(x.shape, generator=self.gen)
        a = self.alpha_bar[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * eps, t, eps
