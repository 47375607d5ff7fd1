import torch


class RatingShard:
    """Synthetic regression table; every rank holds its own rows."""

    def __init__(self, rows, dim, rank):
        g = torch.Generator().manual_seed(1000 + rank)
        self.x = torch.randn(rows, dim, generator=g) * torch.linspace(0.5, 4.0, dim) + 1.5
        w = torch.randn(dim, 1, generator=torch.Generator().manual_seed(5)) / dim ** 0.5
        self.y = torch.tanh(self.x @ w) + 0.05 * torch.randn(rows, 1, generator=g)

    def draw(self, n, gen):
        idx = torch.randint(len(self.x), (n,), generator=gen)
        return self.x[idx], self.y[idx]


class RunningNorm:
    def __init__(self, dim):
        self.count = torch.zeros(1)
        self.total = torch.zeros(dim)
        self.total_sq = torch.zeros(dim)

    def update(self, x, dist):
        pack = torch.cat([torch.tensor([float(len(x))]), x.sum(0), (x * x).sum(0)])
        dist.all_reduce(pack)
        d = x.shape[1]
        self.count += pack[:1]
        self.total += pack[1:1 + d]
        self.total_sq += pack[1 + d:]

    def __call__(self, x):
        mean = self.total / self.count
        var = (self.total_sq / self.count - mean ** 2).clamp_min(1e-4)
        return (x - mean) / var.sqrt()

    def state_dict(self):
        return dict(count=self.count, total=self.total, total_sq=self.total_sq)

    def load_state_dict(self, s):
        self.count, self.total, self.total_sq = s["count"], s["total"], s["total_sq"]
