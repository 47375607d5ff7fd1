"""A small vector index kept as npz parts in a directory."""
import os
from pathlib import Path

import numpy as np


def prepare(folder: Path):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npz"):
        old.unlink()


def add_part(folder: Path, epoch: int, rank: int, ids: np.ndarray, vecs: np.ndarray):
    target = folder / f"e{epoch:03d}-part{rank:03d}.npz"
    staging = folder / f".{os.getpid()}.staging"
    with open(staging, "wb") as fh:
        np.savez(fh, ids=ids, vecs=vecs)
    os.replace(staging, target)
    return target


def load(folder: Path, epoch: int):
    ids, vecs = [], []
    for part in sorted(folder.glob(f"e{epoch:03d}-part*.npz")):
        with np.load(part) as z:
            ids.append(z["ids"])
            vecs.append(z["vecs"])
    return np.concatenate(ids), np.concatenate(vecs)
