import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader


class BatchSamplerShard(BatchSampler):
    """Yields this process's batches of a batch sampler, in turn with the other processes."""

    def __init__(self, batch_sampler, rank, world):
        self.batch_sampler = batch_sampler
        self.rank, self.world = rank, world

    def __len__(self):
        return len(self.batch_sampler) // self.world

    def __iter__(self):
        for i, batch in enumerate(self.batch_sampler):
            if i >= len(self) * self.world:
                return
            if i % self.world == self.rank:
                yield batch


class PreparedLoader:
    def __init__(self, loader):
        self.loader = loader
        self.epoch = 0

    def set_epoch(self, epoch):
        sampler = self.loader.batch_sampler
        while hasattr(sampler, "batch_sampler"):
            sampler = sampler.batch_sampler
        sampler.sampler.set_epoch(epoch)

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return iter(self.loader)


def prepare_loader(loader, already_sharded=False):
    if already_sharded:
        return PreparedLoader(loader)
    shard = BatchSamplerShard(loader.batch_sampler, dist.get_rank(), dist.get_world_size())
    return PreparedLoader(DataLoader(loader.dataset, batch_sampler=shard, num_workers=loader.num_workers))
