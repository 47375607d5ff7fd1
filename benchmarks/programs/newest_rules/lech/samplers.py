import torch.distributed as dist
from torch.utils.data import Sampler


class Batches(Sampler):
    """Groups the indices of another sampler into batches of one length."""

    def __init__(self, source, batch_size):
        self.source = source
        self.batch_size = batch_size
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def __iter__(self):
        groups = []
        current = []
        for index in self.source:
            current.append(index)
            if len(current) == self.batch_size:
                groups.append(current)
                current = []
        yield from groups[self.rank :: self.world]

    def __len__(self):
        return len(self.source) // self.batch_size // self.world

    def set_epoch(self, epoch):
        self.source.set_epoch(epoch)
