import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_split(n, seed, noise):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 10, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.5 * x[:, 3:4].abs()
    return TensorDataset(x, y + noise * torch.randn(n, 1, generator=g))


def loaders(batch_size, noise=0.3):
    train = make_split(1920, 1, noise)
    val = make_split(240, 2, noise)
    ts = DistributedSampler(train, shuffle=True)
    vs = DistributedSampler(val, shuffle=False)
    return DataLoader(train, batch_size, sampler=ts), DataLoader(val, 60, sampler=vs)
