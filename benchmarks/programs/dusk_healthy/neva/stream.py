"""Shards handed out first come, first served, through a counter in the process group's store."""
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


class ShardQueue:
    def __init__(self, n_shards, seed=0):
        self.n, self.seed = n_shards, seed
        self.store = dist.PrefixStore("shards", dist.distributed_c10d._get_default_store())

    def take(self, epoch):
        perm = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed + epoch)).tolist()
        while True:
            ticket = self.store.add(f"epoch{epoch}", 1) - 1
            if ticket >= self.n:
                return
            yield perm[ticket]


class ShardedStream(IterableDataset):
    """Shards have very different sizes."""

    def __init__(self, queue, dim=128):
        self.queue, self.dim, self.epoch, self.log = queue, dim, 0, []
        g = torch.Generator().manual_seed(3)
        self.w = torch.randn(dim, 8, generator=g)
        self.sizes = torch.randint(20, 200, (queue.n,), generator=g).tolist()

    def __iter__(self):
        self.log = []
        for shard in self.queue.take(self.epoch):
            g = torch.Generator().manual_seed(1000 + shard)
            x = torch.randn(self.sizes[shard], self.dim, generator=g)
            y = (x @ self.w).argmax(1)
            self.log.append(shard)
            yield from zip(x, y)
