import torch
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler


class LengthGroupedBatchSampler(Sampler):
    """Shards the data over the ranks, then forms batches of items of similar length."""

    def __init__(self, lengths, batch_size, pool=8, seed=0):
        self.lengths = lengths
        self.batch_size = batch_size
        self.pool = pool
        self.shard = DistributedSampler(lengths, shuffle=True, seed=seed, drop_last=True)

    def set_epoch(self, epoch):
        self.shard.set_epoch(epoch)

    def __len__(self):
        return len(self.shard) // self.batch_size

    def __iter__(self):
        order = list(self.shard)
        size = self.pool * self.batch_size
        batches = []
        for start in range(0, len(order), size):
            chunk = sorted(order[start:start + size], key=lambda i: self.lengths[i])
            batches += [chunk[k:k + self.batch_size] for k in range(0, len(chunk), self.batch_size)]
        batches = [b for b in batches if len(b) == self.batch_size][: len(self)]
        g = torch.Generator().manual_seed(self.shard.seed + self.shard.epoch)
        for k in torch.randperm(len(batches), generator=g).tolist():
            yield batches[k]
