"""Feature cache on disk, guarded by a lock file."""
import contextlib
import fcntl
import hashlib
import logging
import os
from pathlib import Path

import numpy as np

log = logging.getLogger("cache")


@contextlib.contextmanager
def locked(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def random_features(x, out_dim, seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(x.shape[1], out_dim)) / np.sqrt(x.shape[1])
    b = rng.uniform(0, 2 * np.pi, size=out_dim)
    return np.sqrt(2.0 / out_dim) * np.cos(x @ w + b)


class FeatureCache:
    def __init__(self, root, sync):
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)
        self.sync = sync

    def _key(self, split, dim, seed):
        return hashlib.md5(f"{split}-{dim}-{seed}".encode()).hexdigest()[:10]

    def get(self, split, raw, dim, seed):
        path = self.root / f"{split}-{self._key(split, dim, seed)}.npy"
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                log.info("computing %s features", split)
                tmp = path.with_suffix(".tmp.npy")
                np.save(tmp, random_features(raw, dim, seed).astype(np.float32))
                os.replace(tmp, path)
            self.sync()
        return np.load(path, mmap_mode="r")
