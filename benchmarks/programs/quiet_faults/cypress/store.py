import collections
import os

import numpy as np
import torch
from torch.utils.data import Dataset

SIDE = 96


def write_store(folder, sizes, seed=14):
    rng = np.random.default_rng(seed)
    grid = np.linspace(0, 3, SIDE, dtype=np.float32)
    for i, n in enumerate(sizes):
        angle = rng.uniform(0, np.pi, size=n).astype(np.float32)
        phase = (np.cos(angle)[:, None, None] * grid[None, :, None]
                 + np.sin(angle)[:, None, None] * grid[None, None, :])
        fields = np.sin(4 * phase) + 0.5 * rng.standard_normal((n, SIDE, SIDE)).astype(np.float32)
        target = np.stack([np.cos(2 * angle), np.sin(2 * angle)], axis=1)
        np.savez_compressed(os.path.join(folder, f"part-{i:03d}.npz"), fields=fields.astype(np.float32), target=target)


class PackedFields(Dataset):
    """Random access into compressed parts; recently used parts stay in memory."""

    def __init__(self, folder, parts, sizes, keep=3):
        self.folder = folder
        self.where = [(p, i) for p in parts for i in range(sizes[p])]
        self.keep = keep
        self.open = collections.OrderedDict()

    def part(self, number):
        if number in self.open:
            self.open.move_to_end(number)
            return self.open[number]
        with np.load(os.path.join(self.folder, f"part-{number:03d}.npz")) as z:
            loaded = (z["fields"], z["target"])
        self.open[number] = loaded
        while len(self.open) > self.keep:
            self.open.popitem(last=False)
        return loaded

    def __len__(self):
        return len(self.where)

    def __getitem__(self, i):
        number, row = self.where[i]
        fields, target = self.part(number)
        return torch.from_numpy(fields[row])[None], torch.from_numpy(target[row])


def assign(sizes, world):
    """Contiguous runs of parts with the same number of rows for every rank."""
    share = sum(sizes) // world
    runs, current, filled = [], [], 0
    for number, n in enumerate(sizes):
        current.append(number)
        filled += n
        if filled == share:
            runs.append(current)
            current, filled = [], 0
    assert len(runs) == world and not current, "parts do not divide evenly"
    return runs
