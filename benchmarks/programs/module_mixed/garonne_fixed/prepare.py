import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Launcher:
    """Makes single-process objects ready for a distributed run."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def prepare(self, *objects):
        return tuple(self._one(o) for o in objects)

    def _one(self, obj):
        if isinstance(obj, DataLoader):
            return self._loader(obj)
        if hasattr(obj, "parameters"):
            return DDP(obj)
        return obj

    def _loader(self, loader):
        sampler = DistributedSampler(loader.dataset, num_replicas=self.world, rank=self.rank, shuffle=True, seed=11)
        return DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=sampler, drop_last=loader.drop_last)
