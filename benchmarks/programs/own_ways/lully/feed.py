import json
from pathlib import Path

import numpy as np
import torch


def write_parts(root: Path, sizes, seed, classes=5, features=20):
    """Writes feature files of different length plus an index."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((classes, features)) * 0.9
    index = []
    for k, n in enumerate(sizes):
        y = rng.integers(0, classes, n)
        x = centres[y] + rng.standard_normal((n, features))
        np.save(root / f"x{k}.npy", x.astype(np.float32))
        np.save(root / f"y{k}.npy", y)
        index.append({"x": f"x{k}.npy", "y": f"y{k}.npy", "n": int(n)})
    (root / "index.json").write_text(json.dumps(index))


class PartFeed:
    """Yields the batches of the parts that belong to this process; lengths may differ."""

    def __init__(self, root, batch, rank, world, seed):
        self.root = Path(root)
        self.index = json.loads((self.root / "index.json").read_text())
        self.batch, self.rank, self.world, self.seed = batch, rank, world, seed

    def epoch(self, number):
        order = np.random.default_rng((self.seed, number)).permutation(len(self.index))
        mine = order[self.rank::self.world]
        rng = np.random.default_rng((self.seed, number, self.rank))
        for k in mine:
            x = np.load(self.root / self.index[k]["x"], mmap_mode="r")
            y = np.load(self.root / self.index[k]["y"])
            rows = rng.permutation(len(y))
            for at in range(0, len(rows), self.batch):
                pick = np.sort(rows[at:at + self.batch])
                yield torch.from_numpy(np.ascontiguousarray(x[pick])), torch.from_numpy(y[pick])
