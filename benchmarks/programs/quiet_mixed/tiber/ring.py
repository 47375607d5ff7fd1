import math

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def ring_loader(n, batch, seed):
    g = torch.Generator().manual_seed(seed)
    k = torch.randint(0, 8, (n,), generator=g)
    a = k * (math.pi / 4)
    x = torch.stack([a.cos(), a.sin()], -1) * 2 + 0.05 * torch.randn(n, 2, generator=g)
    sampler = DistributedSampler(TensorDataset(x), seed=seed)
    return DataLoader(TensorDataset(x), batch_size=batch, sampler=sampler, drop_last=True), sampler
