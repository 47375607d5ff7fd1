import torch


class RunningNorm(torch.nn.Module):
    def __init__(self, dim, clip=5.0):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))
        self.clip = clip

    @torch.no_grad()
    def update(self, x):
        x = x.double()
        n = torch.tensor(float(x.size(0)), dtype=torch.float64)
        s1, s2 = x.sum(0), (x * x).sum(0)
        mean = s1 / n
        var = s2 / n - mean * mean
        total = self.count + n
        delta = mean - self.mean
        m2 = self.var * self.count + var * n + delta ** 2 * self.count * n / total
        self.mean.add_(delta * n / total)
        self.var.copy_(m2 / total)
        self.count.copy_(total)

    def forward(self, x):
        z = (x - self.mean.float()) / (self.var.float() + 1e-6).sqrt()
        return z.clamp(-self.clip, self.clip)
