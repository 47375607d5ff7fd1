import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def synth(n, seed, noise):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 5, generator=g) * 2 - 1
    y = (3 * x[:, 0]).sin() + x[:, 1] * x[:, 2] + noise * torch.randn(n, generator=g)
    return TensorDataset(x, y.unsqueeze(1))


def loaders(rank, world, batch_size):
    train = synth(720, seed=1, noise=0.05)
    # the validation years get noisier towards the end of the archive
    val_parts = [synth(60, seed=100 + r, noise=0.05 + 0.9 * (r == world - 1)) for r in range(world)]
    sampler = DistributedSampler(train, world, rank, shuffle=True, seed=7)
    return (DataLoader(train, batch_size=batch_size, sampler=sampler),
            DataLoader(val_parts[rank], batch_size=batch_size), sampler)
