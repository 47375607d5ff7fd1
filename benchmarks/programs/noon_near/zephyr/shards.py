import os
from collections import OrderedDict

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler


def write_shards(folder, shards=16, rows=96, length=2400, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(length, dtype=np.float32) / 400
    for s in range(shards):
        label = rng.integers(0, 6, rows)
        freq = (3 + 4 * label)[:, None] + rng.normal(0, 0.4, (rows, 1))
        wave = np.sin(2 * np.pi * freq * t + rng.uniform(0, 6.28, (rows, 1))) + rng.normal(0, 1.2, (rows, length))
        np.savez(os.path.join(folder, f"shard_{s:03d}.npz"), wave=wave.astype(np.float16), label=label)


class ShardCache:
    def __init__(self, folder, capacity):
        self.folder, self.capacity = folder, capacity
        self.open = OrderedDict()

    def get(self, shard):
        if shard in self.open:
            self.open.move_to_end(shard)
        else:
            with np.load(os.path.join(self.folder, f"shard_{shard:03d}.npz")) as z:
                self.open[shard] = (z["wave"].astype(np.float32), z["label"])
            while len(self.open) > self.capacity:
                self.open.popitem(last=False)
        return self.open[shard]


class WaveDataset(Dataset):
    def __init__(self, folder, shards, rows, capacity=3):
        self.rows, self.total = rows, shards * rows
        self.cache = ShardCache(folder, capacity)

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        wave, label = self.cache.get(index // self.rows)
        return torch.from_numpy(wave[index % self.rows]), int(label[index % self.rows])


class ShardWiseSampler(Sampler):
    """Shuffles shards across ranks and rows inside a small window of shards."""

    def __init__(self, shards, rows, rank, world, window=2, seed=0):
        self.shards, self.rows, self.rank, self.world = shards, rows, rank, world
        self.window, self.seed, self.epoch = window, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.shards // self.world * self.rows

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        mine = torch.randperm(self.shards, generator=g)[self.rank::self.world].tolist()
        for i in range(0, len(mine), self.window):
            rows = torch.cat([torch.arange(s * self.rows, (s + 1) * self.rows) for s in mine[i:i + self.window]])
            yield from rows[torch.randperm(len(rows), generator=g)].tolist()
