import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Signals(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 16, generator=g)
        self.y = (self.x[:, :8].mean(1) > self.x[:, 8:].mean(1)).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def distributed():
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def loader(dataset, batch_size, split):
    sampler = None
    if distributed():
        sampler = DistributedSampler(dataset, shuffle=split == "train")
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, shuffle=sampler is None and split == "train")
