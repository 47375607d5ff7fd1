import torch
from torch.utils.data import IterableDataset, get_worker_info


class ShardStream(IterableDataset):
    """Reads shards of unequal length; shards go round-robin to ranks, then to workers."""

    def __init__(self, sizes, rank, world):
        self.sizes, self.rank, self.world = sizes, rank, world
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _mine(self):
        order = torch.randperm(len(self.sizes), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        mine = order[self.rank::self.world]
        info = get_worker_info()
        return mine if info is None else mine[info.id::info.num_workers]

    def __iter__(self):
        for s in self._mine():
            g = torch.Generator().manual_seed(s)
            for k in range(self.sizes[s]):
                x = torch.randn(8, generator=g)
                yield x, (x[:4].sum() - x[4:].prod()).reshape(1), s * 1000 + k
