"""Lookup tables which are costly to compute and are kept on disk between runs."""
import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path

import numpy as np

log = logging.getLogger("tables")


class Table:
    def __init__(self, root, name, rows, cols, chunk=50, seconds_per_chunk=0.7):
        self.path = Path(root) / f"{name}-{rows}x{cols}.npy"
        self.rows, self.cols, self.chunk = rows, cols, chunk
        self.seconds_per_chunk = seconds_per_chunk

    @contextlib.contextmanager
    def _exclusive(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_suffix(".lock"), "w") as fh:
            fcntl.flock(fh, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(fh, fcntl.LOCK_UN)

    def _compute(self):
        out = np.empty((self.rows, self.cols), dtype=np.float32)
        k = np.arange(self.cols)
        for lo in range(0, self.rows, self.chunk):
            r = np.arange(lo, min(lo + self.chunk, self.rows))[:, None]
            out[lo:lo + self.chunk] = np.cos(0.37 * r * (k + 1)) * np.exp(-0.05 * k)
            time.sleep(self.seconds_per_chunk)
        return out

    def open(self):
        """First come computes; late comers wait at the lock and find the file."""
        with self._exclusive():
            if not self.path.exists():
                start = time.monotonic()
                tmp = self.path.with_suffix(".tmp.npy")
                np.save(tmp, self._compute())
                os.replace(tmp, self.path)
                log.info("%s computed in %.1f s", self.path.name, time.monotonic() - start)
        return np.load(self.path, mmap_mode="r")
