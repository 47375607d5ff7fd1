import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


def write_shards(root, shards, docs, length, seed):
    os.makedirs(root, exist_ok=True)
    rng = np.random.default_rng(seed)
    trans = rng.dirichlet(np.full(ShardStream.vocab, 0.15), size=ShardStream.vocab)
    for split, n in (("train", shards), ("valid", 2)):
        for s in range(n):
            out = np.empty((docs, length + 1), dtype=np.int16)
            out[:, 0] = rng.integers(0, ShardStream.vocab, docs)
            for t in range(1, length + 1):
                u = rng.random((docs, 1))
                out[:, t] = (trans[out[:, t - 1]].cumsum(1) < u).sum(1).clip(max=ShardStream.vocab - 1)
            np.save(os.path.join(root, f"{split}-{s:03d}.npy"), out)


def world_info():
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class ShardStream(IterableDataset):
    """Reads token shards; shards are dealt to ranks and then to loader workers, docs go through a shuffle buffer."""

    vocab = 28

    def __init__(self, root, name, num_shards, seed, buffer, split=True):
        self.files = [os.path.join(root, f"{name}-{s:03d}.npy") for s in range(num_shards)]
        self.seed, self.buffer, self.epoch = seed, buffer, 0
        self.rank, self.world = world_info() if split else (0, 1)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _my_files(self):
        files = list(self.files)
        if self.buffer:
            random.Random(self.seed + self.epoch).shuffle(files)
        files = files[self.rank::self.world]
        info = get_worker_info()
        if info is not None:
            files = files[info.id::info.num_workers]
        return files

    def __iter__(self):
        info = get_worker_info()
        rng = random.Random(f"{self.seed}-{self.epoch}-{self.rank}-{info.id if info else 0}")
        pool = []
        for f in self._my_files():
            for row in np.load(f):
                doc = torch.from_numpy(row.astype(np.int64))
                if not self.buffer:
                    yield doc
                    continue
                pool.append(doc)
                if len(pool) > self.buffer:
                    yield pool.pop(rng.randrange(len(pool)))
        rng.shuffle(pool)
        yield from pool
