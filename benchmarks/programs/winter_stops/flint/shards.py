"""Compressed feature shards on local disk with an in-memory cache in front."""
import io
import os
import threading
import zlib

import numpy as np


def write_shard(path, rows, dim, seed, level=6):
    rng = np.random.default_rng(seed)
    x = np.round(rng.standard_normal((rows, dim)).astype(np.float32), 2)
    w = np.random.default_rng(0).standard_normal((dim, 10)).astype(np.float32)
    y = (x @ w).argmax(1).astype(np.int64)
    buf = io.BytesIO()
    np.savez(buf, x=x, y=y)
    with open(path, "wb") as f:
        f.write(zlib.compress(buf.getvalue(), level))


class ShardCache:
    """Keeps decoded shards; thread safe, every shard is decoded at most once."""

    def __init__(self, paths):
        self.paths = list(paths)
        self._lock = threading.Lock()
        self._data = {}

    def _decode(self, path):
        with open(path, "rb") as f:
            raw = zlib.decompress(f.read())
        with np.load(io.BytesIO(raw)) as z:
            x, y = z["x"], z["y"]
        for col in range(x.shape[1]):
            ranks = x[:, col].argsort(kind="stable").argsort(kind="stable")
            x[:, col] = ranks / (len(ranks) - 1) - 0.5
        return x, y

    def get(self, i):
        with self._lock:
            if i not in self._data:
                self._data[i] = self._decode(self.paths[i])
            return self._data[i]

    def evict_except(self, keep):
        with self._lock:
            for i in [k for k in self._data if k not in keep]:
                del self._data[i]

    def warm(self, i):
        t = threading.Thread(target=self.get, args=(i,), name=f"warm-{i}", daemon=True)
        t.start()
        return t


def prepare(folder, rank, rows, dim, count):
    os.makedirs(folder, exist_ok=True)
    paths = []
    for i in range(count):
        path = os.path.join(folder, f"part{rank}_{i}.z")
        if not os.path.exists(path):
            write_shard(path, rows, dim, seed=100 * rank + i, level=1)
        paths.append(path)
    return paths
