import torch
from torch.utils.data import Dataset

from shards import ShardCache


class ShardStream:
    """Walks over the shards; the views below always look at the current one."""

    def __init__(self, paths):
        self.cache = ShardCache(paths)
        self.current = 0

    def __len__(self):
        return len(self.cache.paths)

    def advance(self, i):
        self.current = i
        self.cache.get(i)
        self.cache.evict_except({i})

    def prefetch(self):
        if self.current + 1 < len(self):
            self.cache.warm(self.current + 1)


class ShardView(Dataset):
    def __init__(self, stream, lo, hi):
        self.stream, self.lo, self.hi = stream, lo, hi

    def __len__(self):
        return self.hi - self.lo

    def __getitem__(self, k):
        x, y = self.stream.cache.get(self.stream.current)
        return torch.from_numpy(x[self.lo + k]), int(y[self.lo + k])
