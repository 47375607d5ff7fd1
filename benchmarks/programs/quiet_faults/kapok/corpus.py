import os
import random

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_sources(folder, rows, width, vocab, seed=1):
    rng = np.random.default_rng(seed)
    for name, n in rows.items():
        step = {"prose": 1, "code": 3, "tables": 7}[name]
        start = rng.integers(0, vocab, size=(n, 1))
        noise = rng.random((n, width)) < 0.1
        body = (start + step * np.arange(width)) % vocab
        body[noise] = rng.integers(0, vocab, size=int(noise.sum()))
        body.astype(np.uint16).tofile(os.path.join(folder, f"{name}.bin"))


class Mixture(IterableDataset):
    """Rows of several memory-mapped sources in one shuffled order; each reader takes its own rows."""

    def __init__(self, folder, rows, width, rank, world, seed):
        self.folder, self.rows, self.width = folder, rows, width
        self.rank, self.world, self.seed = rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        workers, mine = (info.num_workers, info.id) if info else (1, 0)
        reader, readers = self.rank * workers + mine, self.world * workers
        maps = {
            n: np.memmap(os.path.join(self.folder, f"{n}.bin"), dtype=np.uint16, mode="r").reshape(-1, self.width)
            for n in self.rows
        }
        plan = [(n, i) for n, count in sorted(self.rows.items()) for i in range(count)]
        random.Random(self.seed * 131 + self.epoch).shuffle(plan)
        for name, i in plan[reader::readers]:
            yield torch.from_numpy(maps[name][i].astype(np.int64))
