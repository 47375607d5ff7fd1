"""Endless stream of click events out of one archive, mixed by a buffer."""
import random

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_archive(path, events, fields, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(events, fields)).astype("float32")
    w = np.random.default_rng(99).normal(size=fields)
    y = (x @ w + 0.5 * rng.normal(size=events) > 0).astype("float32")
    np.save(path, np.concatenate([x, y[:, None]], 1))


def mixed(source, size, rng):
    """Hold back `size` items and let a random one go for each new one."""
    held = []
    for item in source:
        if len(held) < size:
            held.append(item)
            continue
        k = rng.randrange(size)
        out, held[k] = held[k], item
        yield out


class EventStream(IterableDataset):
    def __init__(self, path, buffer, seed, rank=0, world=1):
        self.path = path
        self.buffer = buffer
        self.seed = seed
        self.rank = rank
        self.world = world

    def _events(self, first, stride):
        archive = np.load(self.path, mmap_mode="r")
        while True:
            for i in range(first, len(archive), stride):
                yield archive[i]

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rng = random.Random(f"{self.seed}/{self.rank}/{worker}")
        for event in mixed(self._events(worker, workers), self.buffer, rng):
            row = torch.tensor(event)
            yield row[:-1], row[-1]
