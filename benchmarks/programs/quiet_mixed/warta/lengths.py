import torch
from torch.utils.data import Sampler


class BucketedBatches(Sampler):
    """Batches of similar length, dealt out to the ranks from one global batch."""

    def __init__(self, lengths, per_rank, rank, world, seed=0):
        self.lengths = torch.as_tensor(lengths)
        self.per_rank = per_rank
        self.rank, self.world = rank, world
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // (self.per_rank * self.world)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=g)
        size = self.per_rank * self.world
        for k in range(len(self)):
            chunk = order[k * size:(k + 1) * size]
            chunk = chunk[self.lengths[chunk].argsort()]
            yield chunk[(self.rank + k) % self.world::self.world].tolist()
