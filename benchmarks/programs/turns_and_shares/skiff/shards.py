"""Shard files of generated soundings and the stream that reads them."""
import random
from pathlib import Path

import torch
from torch.utils.data import IterableDataset


def write_shards(folder, count, rows, seed, offset=0):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mix = torch.randn(16, 3, generator=torch.Generator().manual_seed(seed))
    for n in range(count):
        g = torch.Generator().manual_seed(seed * 1000 + offset + n)
        bed = torch.randint(3, (rows,), generator=g)
        depth = torch.rand(rows, 1, generator=g) * 2 + 0.1 * n
        x = mix[:, bed].t() + depth + 2.0 * torch.randn(rows, 16, generator=g)
        torch.save((x, bed), folder / f"soundings-{n:04d}.pt")


class ShardStream(IterableDataset):
    """Reads this process's share of the shard files, in a new order every epoch."""

    def __init__(self, folder, rank, world, seed, shuffle=True):
        self.files = sorted(Path(folder).glob("soundings-*.pt"))
        self.files = self.files[:len(self.files) // world * world]
        self.rank, self.world = rank, world
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def assigned(self):
        order = list(self.files)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        return order[self.rank::self.world]

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 1000 * self.epoch + self.rank)
        for path in self.assigned():
            x, y = torch.load(path, map_location="cpu")
            rows = torch.randperm(len(y), generator=g) if self.shuffle else torch.arange(len(y))
            for i in rows.tolist():
                yield x[i], y[i]
