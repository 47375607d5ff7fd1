import glob
import os
import random

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_shards(root, n_shards, per_shard, length=128):
    """Write a toy keyword-spotting corpus as npz shards."""
    os.makedirs(root, exist_ok=True)
    for s in range(n_shards):
        rng = np.random.default_rng(s)
        y = rng.integers(0, 6, size=per_shard)
        t = np.linspace(0, 1, length)
        freq = 3 + 4 * y[:, None]
        x = np.sin(2 * np.pi * freq * t + rng.random((per_shard, 1)) * 6.28) + 0.4 * rng.standard_normal((per_shard, length))
        key = np.arange(per_shard) + s * per_shard
        np.savez(os.path.join(root, f"shard-{s:05d}.npz"), x=x.astype("float32"), y=y, key=key)


class ShardedAudio(IterableDataset):
    """Iterates whole shard files, shuffles inside a buffer."""

    def __init__(self, root, rank, world_size, seed=0, buffer=64):
        self.files = sorted(glob.glob(os.path.join(root, "shard-*.npz")))
        self.rank, self.world_size = rank, world_size
        self.seed, self.buffer, self.epoch = seed, buffer, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _assigned(self):
        files = list(self.files)
        random.Random(self.seed + self.epoch).shuffle(files)
        return files[self.rank::self.world_size]

    def _records(self, files):
        for name in files:
            with np.load(name) as z:
                xs, ys, keys = z["x"], z["y"], z["key"]
            for x, y, k in zip(xs, ys, keys):
                yield int(k), torch.from_numpy(x), int(y)

    def __iter__(self):
        info = get_worker_info()
        files = self._assigned()
        rng = random.Random(hash((self.seed, self.epoch, self.rank, info.id if info else 0)))
        pool = []
        for rec in self._records(files):
            if len(pool) < self.buffer:
                pool.append(rec)
                continue
            i = rng.randrange(len(pool))
            out, pool[i] = pool[i], rec
            yield out
        rng.shuffle(pool)
        yield from pool
