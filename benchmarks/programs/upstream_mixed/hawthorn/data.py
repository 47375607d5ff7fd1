import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler

from prepare import prepare_loader


class Curves(Dataset):
    def __init__(self, count=480, points=24):
        gen = torch.Generator().manual_seed(21)
        self.phase = torch.rand(count, generator=gen) * 6.28
        self.grid = torch.linspace(0, 6.28, points)

    def __len__(self):
        return len(self.phase)

    def __getitem__(self, i):
        return torch.sin(self.grid + self.phase[i]), torch.stack([self.phase[i].sin(), self.phase[i].cos()])


class RankSampler(Sampler):
    """A permutation of the data per epoch; every process takes its own stride of it."""

    def __init__(self, dataset, seed):
        self.count, self.seed, self.epoch = len(dataset), seed, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count // self.world

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.count, generator=gen).tolist()
        return iter(order[self.rank:len(self) * self.world:self.world])


def build_loader(batch):
    dataset = Curves()
    loader = DataLoader(dataset, batch_size=batch, sampler=RankSampler(dataset, seed=4), num_workers=1)
    return prepare_loader(loader)
