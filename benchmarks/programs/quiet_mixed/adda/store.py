import gzip
import os
import pickle
import threading

import numpy as np


class FeatureStore:
    """Per-item features, computed once and kept on disk between runs."""

    def __init__(self, path, dim):
        self.path = path
        self.dim = dim
        self.items = {}
        self.lock = threading.Lock()
        self.writer = None

    def get(self, key):
        with self.lock:
            value = self.items.get(key)
            if value is None:
                value = self._compute(key)
                self.items[key] = value
            return value

    def _compute(self, key):
        rng = np.random.default_rng(key)
        base = rng.standard_normal(self.dim).astype(np.float32)
        return (np.cumsum(base) / np.sqrt(self.dim)).astype(np.float32)

    def _write(self):
        with self.lock:
            tmp = self.path + ".tmp"
            with gzip.open(tmp, "wb", compresslevel=9) as f:
                pickle.dump(self.items, f)
            os.replace(tmp, self.path)

    def save(self):
        self.writer = threading.Thread(target=self._write, daemon=True)
        self.writer.start()

    def finish(self):
        if self.writer is not None:
            self.writer.join()
            self.writer = None
