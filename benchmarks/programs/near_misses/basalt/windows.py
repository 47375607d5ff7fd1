"""Load-curve files and the windows cut from them."""
import os
import random

import numpy as np
import torch
from torch.utils.data import IterableDataset

HISTORY, HORIZON = 24, 6


def generate(folder, count, seed):
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(seed)
    t = np.arange(61)
    for i in range(count):
        base, day = rng.uniform(0.5, 1.5), rng.uniform(0.1, 0.6)
        curve = base + day * np.sin(2 * np.pi * t / 24 + rng.uniform(0, 6)) + 0.03 * rng.standard_normal(61)
        np.save(os.path.join(folder, f"meter{i:03d}.npy"), curve.astype(np.float32))


class MeterWindows(IterableDataset):
    """All windows of the meters that fall to this replica in this epoch."""

    def __init__(self, folder, replica, replicas, seed):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder))
        self.replica, self.replicas, self.seed = replica, replicas, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rng = random.Random(self.seed * 1000 + self.epoch)
        files = list(self.files)
        rng.shuffle(files)
        files = files[self.replica::self.replicas]
        for path in files:
            curve = torch.from_numpy(np.load(path))
            starts = list(range(len(curve) - HISTORY - HORIZON + 1))
            rng.shuffle(starts)
            for s in starts:
                cut = curve[s:s + HISTORY + HORIZON]
                yield cut[:HISTORY], cut[HISTORY:]
