import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler


class SeedableSampler(Sampler):
    def __init__(self, n, rank, world, seed=0):
        self.n, self.rank, self.world, self.seed, self.epoch = n, rank, world, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.n // self.world

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.n, generator=g)[: len(self) * self.world]
        return iter(order[self.rank::self.world].tolist())


class SkipBatchSampler(BatchSampler):
    def __init__(self, inner, skip):
        self.inner, self.skip = inner, skip

    @property
    def sampler(self):
        return self.inner.sampler

    def __iter__(self):
        for i, b in enumerate(self.inner):
            if i >= self.skip:
                yield b

    def __len__(self):
        return len(self.inner) - self.skip


class ShardLoader:
    """Counts its own passes over the data and tells the sampler about them."""

    def __init__(self, dataset, batch_sampler):
        self.dataset, self.batch_sampler = dataset, batch_sampler
        self.iteration = 0
        self.inner = DataLoader(dataset, batch_sampler=batch_sampler)

    def set_epoch(self, epoch):
        self.iteration = epoch
        self.batch_sampler.sampler.set_epoch(epoch)

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        self.set_epoch(self.iteration)
        yield from self.inner
        self.iteration += 1


def skip_first_batches(loader, n):
    return ShardLoader(loader.dataset, SkipBatchSampler(loader.batch_sampler, n))
