"""Binary shards of load curves: one folder per rank, 96 float32 readings per household day."""
import os

import numpy as np

DAY = 96


def export(folder, rank, shards, days, seed):
    """Stand-in for the nightly export job; returns the shard paths."""
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(seed + rank)
    grid = np.arange(DAY) / DAY * 2 * np.pi
    paths = []
    for s in range(shards):
        phase = rng.uniform(0, 2 * np.pi, size=(days, 1))
        level = rng.uniform(0.5, 2.0, size=(days, 1))
        curve = level * (1.5 + np.sin(grid + phase)) + 0.1 * rng.normal(size=(days, DAY))
        path = os.path.join(folder, f"load-{rank:02d}-{s:03d}.bin")
        payload = curve.astype("<f4").tobytes()
        if rank == 1 and s == 5:
            payload = payload[: len(payload) - 1000]
        with open(path, "wb") as fh:
            fh.write(payload)
        paths.append(path)
    return paths


def read_shard(path):
    raw = np.fromfile(path, dtype="<f4")
    return raw.reshape(-1, DAY)
