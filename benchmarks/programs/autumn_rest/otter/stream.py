import random

import torch
from torch.utils.data import IterableDataset


class ShardStream(IterableDataset):
    """Endless stream over numbered shards; every process reads its own part of them."""

    def __init__(self, place, shards=24, rows=160, width=64, seed=0):
        self.place = place
        self.shards = list(range(shards))
        self.rows, self.width, self.seed = rows, width, seed
        self.project = torch.randn(width, 10, generator=torch.Generator().manual_seed(77))

    def _read(self, shard):
        g = torch.Generator().manual_seed(10_000 + shard)
        x = torch.randn(self.rows, self.width, generator=g)
        noisy = x @ self.project + torch.randn(self.rows, 10, generator=g) * 4
        return x, noisy.argmax(-1)

    def __iter__(self):
        rng = random.Random(self.seed * 1000 + self.place.rank)
        mine = self.shards[self.place.rank::self.place.world]
        while True:
            rng.shuffle(mine)
            for shard in mine:
                x, y = self._read(shard)
                order = list(range(len(x)))
                rng.shuffle(order)
                for i in order:
                    yield x[i], y[i]
