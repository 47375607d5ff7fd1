import torch


class VolumeSet:
    """Noisy balls in small volumes."""

    def __init__(self, n, side, seed):
        g = torch.Generator().manual_seed(seed)
        c = torch.rand(n, 3, generator=g) * (side - 6) + 3
        r = torch.rand(n, generator=g) * 2 + 1.5
        ax = torch.arange(side).float()
        zz, yy, xx = torch.meshgrid(ax, ax, ax, indexing="ij")
        grid = torch.stack([zz, yy, xx], -1)
        dist2 = ((grid[None] - c[:, None, None, None]) ** 2).sum(-1)
        self.mask = (dist2 < (r**2)[:, None, None, None]).float()[:, None]
        self.image = self.mask + 0.5 * torch.randn(self.mask.shape, generator=g)
        self.seed = seed

    def take(self, idx):
        return self.image[idx], self.mask[idx]

    def shard(self, rank, world, batch, epoch):
        g = torch.Generator().manual_seed(self.seed + 17 * epoch)
        order = torch.randperm(len(self.image), generator=g)[rank::world]
        for i in range(0, len(order) - batch + 1, batch):
            yield order[i:i + batch]
