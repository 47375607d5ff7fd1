import glob
import os
import random

import torch
from torch.utils.data import IterableDataset


def write_shards(folder, num_shards, per_shard, dim, classes, seed):
    """Each shard holds the recordings of one site: its own offset, all classes."""
    gen = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, dim, generator=gen)
    os.makedirs(folder, exist_ok=True)
    for s in range(num_shards):
        offset = 1.5 * torch.randn(dim, generator=gen)
        y = torch.randint(0, classes, (per_shard,), generator=gen)
        x = centers[y] + offset + 0.8 * torch.randn(per_shard, dim, generator=gen)
        torch.save({"x": x, "y": y}, os.path.join(folder, f"site-{s:05d}.pt"))


class ShardedStream(IterableDataset):
    def __init__(self, folder, rank, world_size, buffer_size=64, shuffle=True):
        self.urls = sorted(glob.glob(os.path.join(folder, "site-*.pt")))
        self.rank, self.world_size = rank, world_size
        self.buffer_size, self.shuffle = buffer_size, shuffle
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _urls_for_rank(self):
        urls = list(self.urls)
        if self.shuffle:
            random.shuffle(urls)
        usable = len(urls) - len(urls) % self.world_size
        return urls[:usable][self.rank::self.world_size]

    def _samples(self):
        for url in self._urls_for_rank():
            shard = torch.load(url, weights_only=True)
            yield from zip(shard["x"], shard["y"])

    def __iter__(self):
        buffer = []
        for sample in self._samples():
            if not self.shuffle:
                yield sample
                continue
            buffer.append(sample)
            if len(buffer) >= self.buffer_size:
                i = random.randrange(len(buffer))
                buffer[i], buffer[-1] = buffer[-1], buffer[i]
                yield buffer.pop()
        random.shuffle(buffer)
        yield from buffer
