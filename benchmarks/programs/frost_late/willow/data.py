import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    y = (x[:, 0] * x[:, 1] + 0.3 * torch.randn(n, generator=g) > 0).long()
    return TensorDataset(x, y)


def pick_sampler(dataset, train):
    if dist.is_initialized() and dist.get_world_size() > 1:
        if train:
            return DistributedSampler(dataset, shuffle=True, drop_last=True)
        return DistributedSampler(dataset, shuffle=False)
    return None


def make_loader(dataset, batch_size, train):
    sampler = pick_sampler(dataset, train)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, shuffle=train and sampler is None)
