"""Reading and writing of small feature shards (npz + index.json)."""
import json
from pathlib import Path

import numpy as np
import torch

N_CLASSES = 6
FRAMES = 48
BANDS = 12


def _utterance(rng, label):
    t = np.arange(FRAMES)[:, None]
    band = np.arange(BANDS)[None, :]
    base = np.sin(t * (0.15 + 0.09 * label) + band * 0.3 * (label + 1))
    return (base + 0.6 * rng.standard_normal((FRAMES, BANDS))).astype(np.float32)


def write_split(root: Path, split: str, sizes, seed: int):
    """One npz per recording session; sessions have their own length."""
    out = root / split
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    index = []
    for number, size in enumerate(sizes):
        labels = rng.integers(0, N_CLASSES, size)
        feats = np.stack([_utterance(rng, int(y)) for y in labels])
        name = f"{split}-{number:05d}.npz"
        np.savez(out / name, feats=feats, labels=labels)
        index.append({"file": name, "n": int(size)})
    (out / "index.json").write_text(json.dumps(index))


class ShardStream:
    """Streams (features, label) pairs from shards and groups them in batches."""

    def __init__(self, root, split, batch_size, rank=0, world=1, shuffle=True,
                 buffer=64, seed=0, drop_last=True):
        self.dir = Path(root) / split
        self.index = json.loads((self.dir / "index.json").read_text())
        self.batch_size = batch_size
        self.rank, self.world = rank, world
        self.shuffle, self.buffer = shuffle, buffer
        self.seed, self.drop_last = seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _plan(self):
        order = np.arange(len(self.index))
        if self.shuffle:
            np.random.default_rng(self.seed + self.epoch).shuffle(order)
        return [self.index[i] for i in order]

    def _samples(self):
        for entry in self._plan()[self.rank::self.world]:
            with np.load(self.dir / entry["file"]) as z:
                feats, labels = z["feats"], z["labels"]
            for x, y in zip(feats, labels):
                yield x, int(y)

    def _shuffled(self):
        rng = np.random.default_rng((self.seed, self.epoch, self.rank))
        pool = []
        for item in self._samples():
            pool.append(item)
            if len(pool) >= self.buffer:
                yield pool.pop(int(rng.integers(len(pool))))
        rng.shuffle(pool)
        yield from pool

    def __iter__(self):
        source = self._shuffled() if self.shuffle else self._samples()
        xs, ys = [], []
        for x, y in source:
            xs.append(x)
            ys.append(y)
            if len(xs) == self.batch_size:
                yield torch.from_numpy(np.stack(xs)), torch.tensor(ys)
                xs, ys = [], []
        if xs and not self.drop_last:
            yield torch.from_numpy(np.stack(xs)), torch.tensor(ys)
