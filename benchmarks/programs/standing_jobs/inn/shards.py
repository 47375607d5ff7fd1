"""Brings the training shards onto the local disk before a run."""
import hashlib
import json
import logging
import os
import time
from pathlib import Path

import numpy as np

log = logging.getLogger("shards")


class Archive:
    """Slow object store: hands out one shard per request at a limited rate."""

    def __init__(self, n_shards, rows, seconds_per_shard, seed):
        self.n_shards, self.rows = n_shards, rows
        self.pause, self.seed = seconds_per_shard, seed

    def fetch(self, i):
        time.sleep(self.pause)
        rng = np.random.default_rng((self.seed, i))
        y = rng.integers(0, 3, size=self.rows)
        x = rng.normal(size=(self.rows, 12)) + 1.5 * np.eye(12)[y * 4]
        return x.astype(np.float32), y.astype(np.int64)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def stage(archive, folder, token):
    """Runs on one process. The marker carries the token of this run and comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = {}
    for i in range(archive.n_shards):
        x, y = archive.fetch(i)
        tmp = folder / f"part{i}.tmp.npz"
        np.savez(tmp, x=x, y=y)
        final = folder / f"part{i}.npz"
        os.replace(tmp, final)
        sums[final.name] = digest(final)
        log.info("staged %d/%d", i + 1, archive.n_shards)
    tmp = folder / "marker.tmp"
    tmp.write_text(json.dumps({"token": token, "sums": sums}))
    os.replace(tmp, folder / "marker.json")


def wait_staged(folder, token, limit_s=600.0, poll_s=0.2):
    end = time.monotonic() + limit_s
    marker = folder / "marker.json"
    while time.monotonic() < end:
        if marker.exists():
            info = json.loads(marker.read_text())
            if info["token"] == token:
                return info
        time.sleep(poll_s)
    raise TimeoutError(f"{marker} did not appear for run {token}")


def load(folder, info):
    xs, ys = [], []
    for name, want in sorted(info["sums"].items()):
        path = Path(folder) / name
        if digest(path) != want:
            raise IOError(f"{path} is damaged")
        with np.load(path) as z:
            xs.append(z["x"])
            ys.append(z["y"])
    return np.concatenate(xs), np.concatenate(ys)
