import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def draw(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    grid = torch.arange(size).float()
    yy, xx = grid[None, :, None], grid[None, None, :]
    c = torch.rand(n, 2, 1, 1, generator=g) * size / 2 + size / 4
    dx, dy = (xx - c[:, 0]).abs(), (yy - c[:, 1]).abs()
    r = size / 5
    disc = ((dx ** 2 + dy ** 2) < r * r).float()
    box = ((dx < r) & (dy < r)).float()
    cross = (((dx < 1.5) & (dy < r)) | ((dy < 1.5) & (dx < r))).float()
    img = torch.stack([disc, box, cross], 1)[torch.arange(n), y]
    return TensorDataset(img[:, None] + 0.2 * torch.randn(n, 1, size, size, generator=g), y)


def loaders(batch):
    train, val = draw(960, 16, 1), draw(1500, 16, 2)
    sampler = DistributedSampler(train)
    return DataLoader(train, batch, sampler=sampler), sampler, DataLoader(val, 50)
