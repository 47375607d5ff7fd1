import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_loader(batch, n=800, length=64):
    g = torch.Generator().manual_seed(4)
    y = torch.randint(0, 4, (n,), generator=g)
    t = torch.linspace(0, 6.283, length)
    x = torch.sin((y[:, None] * 2 + 2) * t + torch.rand(n, 1, generator=g) * 6.283)
    x = (x + 0.5 * torch.randn(n, length, generator=g))[:, None]
    ds = TensorDataset(x, y)
    sampler = DistributedSampler(ds)
    return DataLoader(ds, batch, sampler=sampler, drop_last=True), sampler
