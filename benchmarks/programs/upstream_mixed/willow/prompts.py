import torch
from torch.utils.data import Dataset, Sampler


class Prompts(Dataset):
    def __init__(self, count=128, dim=8):
        self.x = torch.randn(count, dim, generator=torch.Generator().manual_seed(55))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class GroupSampler(Sampler):
    """A group of answers to one prompt is spread over the processes: all draw the same prompts."""

    def __init__(self, dataset, seed):
        self.count, self.seed, self.epoch = len(dataset), seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.count, generator=gen).tolist())
