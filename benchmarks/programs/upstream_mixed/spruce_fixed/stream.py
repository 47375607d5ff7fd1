import random

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

PER_SHARD = 12


def read_shard(index):
    """A shard holds PER_SHARD samples with consecutive keys."""
    for key in range(index * PER_SHARD, (index + 1) * PER_SHARD):
        gen = torch.Generator().manual_seed(key)
        x = torch.randn(16, generator=gen)
        yield {"key": key, "x": x, "y": x[:4].sum()}


class ShardStream(IterableDataset):
    """Shards are shuffled, split over the processes and over their workers, samples go through a buffer."""

    def __init__(self, shards, seed, buffer=24):
        self.shards, self.seed, self.buffer = shards, seed, buffer
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def my_shards(self):
        shards = list(range(self.shards))
        random.Random(self.seed + self.epoch).shuffle(shards)
        shards = shards[self.rank::self.world]
        info = get_worker_info()
        return shards if info is None else shards[info.id::info.num_workers]

    def __iter__(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        rng = random.Random(f"{self.seed}-{self.epoch}-{self.rank}-{worker}")
        held = []
        for index in self.my_shards():
            for sample in read_shard(index):
                held.append(sample)
                if len(held) > self.buffer:
                    yield held.pop(rng.randrange(len(held)))
        rng.shuffle(held)
        yield from held
