import torch


class MultiView:
    """Cluster samples seen through random masks and noise: two full views and some masked ones."""

    def __init__(self, dim, clusters, seed, rank, local_views=2):
        gen = torch.Generator().manual_seed(seed)
        self.means = 2.0 * torch.randn(clusters, dim, generator=gen) + 1.0
        self.gen = torch.Generator().manual_seed(seed + 31 * (rank + 1))
        self.local_views = local_views

    @property
    def n_views(self):
        return 2 + self.local_views

    def next(self, n):
        y = torch.randint(0, len(self.means), (n,), generator=self.gen)
        base = self.means[y] + 0.5 * torch.randn(n, self.means.size(1), generator=self.gen)
        views = [base + 0.3 * torch.randn(base.shape, generator=self.gen) for _ in range(2)]
        for _ in range(self.local_views):
            keep = torch.rand(base.shape, generator=self.gen) < 0.4
            views.append(base * keep + 0.3 * torch.randn(base.shape, generator=self.gen))
        return views, y
