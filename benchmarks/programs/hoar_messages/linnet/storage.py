import os
import shutil
import tempfile
import time

import torch


class ShardStore:
    """Shards live on a slow share; a local copy is fetched before it is read."""

    def __init__(self, rank, n_shards, samples, dim):
        self.rank, self.n_shards = rank, n_shards
        self.samples, self.dim = samples, dim
        self.root = tempfile.mkdtemp(prefix=f"share{rank}-")
        self._late = {(1, 2)}

    def path(self, idx):
        return os.path.join(self.root, f"shard_{idx:03d}.pt")

    def stage(self, idx):
        """Ask the share for a shard. The mover may be behind, then nothing is there yet."""
        if (self.rank, idx) in self._late:
            self._late.discard((self.rank, idx))
            return
        g = torch.Generator().manual_seed(1000 * self.rank + idx)
        x = torch.randn(self.samples, self.dim, generator=g)
        torch.save({"x": x, "y": x.sum(1, keepdim=True).tanh()}, self.path(idx))

    def read(self, idx):
        blob = torch.load(self.path(idx))
        return blob["x"], blob["y"]

    def close(self):
        shutil.rmtree(self.root, ignore_errors=True)


def backoff(attempt):
    time.sleep(0.2 * (attempt + 1))
