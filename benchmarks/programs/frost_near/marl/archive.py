import io
import time
import zlib

import numpy as np
import torch
from torch.utils.data import Dataset


class ObjectStore:
    """Stand-in for a bucket: reads take as long as one round trip."""

    def __init__(self, items, round_trip):
        self.items, self.round_trip = items, round_trip

    def get(self, key):
        time.sleep(self.round_trip)
        return self.items[key]


def pack(array):
    buf = io.BytesIO()
    np.save(buf, array)
    return zlib.compress(buf.getvalue(), 1)


class TileDataset(Dataset):
    def __init__(self, n=288, size=40, classes=5, round_trip=0.008, seed=4):
        rng = np.random.default_rng(seed)
        base = rng.normal(size=(classes, 3, size, size)).astype(np.float32)
        self.labels = rng.integers(0, classes, n)
        self.store = ObjectStore(
            {f"tile/{i:05d}": pack(base[c] + rng.normal(size=base[c].shape).astype(np.float32))
             for i, c in enumerate(self.labels)}, round_trip)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        raw = zlib.decompress(self.store.get(f"tile/{i:05d}"))
        return torch.from_numpy(np.load(io.BytesIO(raw))), int(self.labels[i])
