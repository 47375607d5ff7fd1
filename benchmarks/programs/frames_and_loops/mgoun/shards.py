import hashlib
import random

import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_shard(index: int, per_shard: int, dim: int):
    g = torch.Generator().manual_seed(4000 + index)
    w = torch.linspace(-1, 1, dim)
    x = torch.randn(per_shard, dim, generator=g)
    y = (x @ w + 0.1 * torch.randn(per_shard, generator=g)).tanh()
    return [{"key": f"{index:05d}-{i:04d}", "x": x[i], "y": y[i]} for i in range(per_shard)]


class ShardStream(IterableDataset):
    """Tar-like stream: shard list -> node split -> worker split -> sample buffer."""

    def __init__(self, shards, per_shard, dim, rank, world, seed=0, buffer=64):
        self.shards, self.per_shard, self.dim = shards, per_shard, dim
        self.rank, self.world = rank, world
        self.seed, self.buffer = seed, buffer
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _rng(self, *salt):
        text = ":".join(map(str, (self.seed, self.epoch, *salt)))
        return random.Random(int(hashlib.md5(text.encode()).hexdigest()[:12], 16))

    def shard_list(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        urls = list(range(self.shards))
        self._rng("shards").shuffle(urls)
        urls = urls[self.rank :: self.world]
        return urls[worker::workers]

    def samples(self):
        for url in self.shard_list():
            yield from write_shard(url, self.per_shard, self.dim)

    def __iter__(self):
        rng = self._rng(self.rank, "buffer")
        pool = []
        for s in self.samples():
            if len(pool) < self.buffer:
                pool.append(s)
                continue
            at = rng.randrange(len(pool))
            out, pool[at] = pool[at], s
            yield out
        rng.shuffle(pool)
        yield from pool


def collate(rows):
    return torch.stack([r["x"] for r in rows]), torch.stack([r["y"] for r in rows])
