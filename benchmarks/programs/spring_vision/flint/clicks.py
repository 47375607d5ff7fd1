import torch


class ClickLog:
    """Synthetic click log with latent factors for users, items and contexts."""

    def __init__(self, sizes, dense=8, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.sizes = sizes
        self.factors = [torch.randn(n, 6, generator=g) for n in sizes]
        self.w = torch.randn(dense, generator=g) * 0.3
        self.dense = dense

    def batch(self, n, gen):
        dense = torch.randn(n, self.dense, generator=gen)
        u = torch.rand(n, len(self.sizes), generator=gen)
        ids = torch.stack([(u[:, i] ** 2 * s).long() for i, s in enumerate(self.sizes)], 1)
        f = torch.stack([t[ids[:, i]] for i, t in enumerate(self.factors)], 1)
        inter = (f.sum(1).pow(2) - f.pow(2).sum(1)).sum(1) * 0.12
        label = torch.bernoulli(torch.sigmoid(inter + dense @ self.w - 0.5), generator=gen)
        return dense, ids, label
