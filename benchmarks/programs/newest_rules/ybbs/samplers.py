import torch.distributed as dist
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler


def outer_share(data, per_host, seed):
    hosts = dist.get_world_size() // per_host
    return DistributedSampler(data, num_replicas=hosts, rank=dist.get_rank() // per_host, shuffle=True, seed=seed)


class Batches(Sampler):
    """Groups the indices of another sampler into batches of one length."""

    def __init__(self, source, batch_size, per_host):
        self.source = source
        self.batch_size = batch_size
        self.rank = dist.get_rank() % per_host
        self.world = per_host

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
