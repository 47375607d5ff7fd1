import os
import tempfile

import torch
from torch.utils.data import Dataset


class Augmented(Dataset):
    def __init__(self, n, rank, world):
        self.rank, self.world_size = rank, world
        self.shard = f"{rank}-of-{world}"
        self.cache_dir = os.path.join(tempfile.gettempdir(), f"views_{os.getpid()}", self.shard)
        self.hot = range(rank, n, world)
        g = torch.Generator().manual_seed(11)
        self.x = torch.randn(n, 16, generator=g)
        self.y = (self.x[:, :4].argmax(1)).long()
        self.cache = {}
        self.reseed(0)

    def reseed(self, epoch):
        self.noise = torch.Generator().manual_seed(1000 * epoch + self.rank)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.x[i].clone()
        return self.cache[i] + 0.1 * torch.randn(16, generator=self.noise), self.y[i]
