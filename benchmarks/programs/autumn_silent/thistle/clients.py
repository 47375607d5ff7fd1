import torch


class HospitalData:
    """Every site has the same underlying signal, its own label set and its own case mix."""

    def __init__(self, site, dim=24, latent=6, seed=0):
        shared = torch.Generator().manual_seed(seed)
        self.lift = torch.randn(latent, dim, generator=shared)
        own = torch.Generator().manual_seed(seed + 100 + site)
        self.classes = 3 + site
        self.centers = 2 * torch.randn(self.classes, latent, generator=own)
        self.prior = torch.softmax(torch.randn(self.classes, generator=own), 0)
        self.gen = torch.Generator().manual_seed(seed + 1000 + site)

    def batch(self, n):
        y = torch.multinomial(self.prior, n, replacement=True, generator=self.gen)
        z = self.centers[y] + 0.7 * torch.randn(n, self.centers.size(1), generator=self.gen)
        x = torch.tanh(z @ self.lift) + 0.1 * torch.randn(n, self.lift.size(1), generator=self.gen)
        return x, y
