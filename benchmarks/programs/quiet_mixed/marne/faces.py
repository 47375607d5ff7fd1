import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def patches(batch, n=540, size=12):
    g = torch.Generator().manual_seed(33)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=g) - 0.5
    r = torch.rand(n, 1, 1, generator=g) * 0.5 + 0.2
    img = torch.exp(-((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2) / r ** 2)
    ds = TensorDataset(img[:, None] * 2 - 1)
    sampler = DistributedSampler(ds, seed=3)
    return DataLoader(ds, batch_size=batch, sampler=sampler, drop_last=True), sampler
