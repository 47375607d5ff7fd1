import random

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, count, length, seed):
        self.names = list(range(count))
        self.length = length
        self.seed = seed
        self.epoch = 0
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def read(self, name):
        gen = torch.Generator().manual_seed(1000 + name)
        x = torch.randn(self.length, 12, generator=gen)
        y = (x[:, 0] + x[:, 1] > 0).long()
        yield from zip(x, y)

    def __iter__(self):
        rng = random.Random(self.seed + 97 * self.epoch + self.rank)
        names = list(self.names)
        rng.shuffle(names)
        mine = names[self.rank :: self.world]
        info = get_worker_info()
        if info is not None:
            mine = mine[info.id :: info.num_workers]
        buffer = []
        for name in mine:
            for sample in self.read(name):
                buffer.append(sample)
                if len(buffer) > 16:
                    yield buffer.pop(rng.randrange(len(buffer)))
        rng.shuffle(buffer)
        yield from buffer
