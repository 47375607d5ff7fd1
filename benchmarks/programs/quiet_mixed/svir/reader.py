import os

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset


def list_parts(cache):
    entries = [e for e in os.scandir(cache) if e.name.endswith(".npz")]
    entries.sort(key=lambda e: e.name)
    return [e.path for e in entries]


class PartReader(IterableDataset):
    def __init__(self, cache, rank, world, seed):
        self.parts = list_parts(cache)[rank::world]
        self.seed = seed
        self.epoch = 0

    def __iter__(self):
        rng = np.random.default_rng([self.seed, self.epoch])
        for k in rng.permutation(len(self.parts)):
            data = np.load(self.parts[k])
            for i in rng.permutation(len(data["y"])):
                yield torch.from_numpy(data["x"][i]), int(data["y"][i])
        self.epoch += 1


def part_loader(cache, rank, world, batch, seed):
    return DataLoader(PartReader(cache, rank, world, seed), batch_size=batch)
