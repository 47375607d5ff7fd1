import torch


class Clusters:
    def __init__(self, cfg, seed):
        g = torch.Generator().manual_seed(0)
        self.centers = torch.randn(cfg.classes * 3, cfg.dim, generator=g) * 1.5
        self.classes, self.n = cfg.classes, cfg.tokens
        self.g = torch.Generator().manual_seed(seed)

    def sample(self):
        k = torch.randint(0, len(self.centers), (self.n,), generator=self.g)
        x = self.centers[k] + 0.6 * torch.randn(self.n, self.centers.size(1), generator=self.g)
        return x, k % self.classes
