import itertools
import os
import random

import torch
from torch.utils.data import IterableDataset, get_worker_info


class LogStream(IterableDataset):
    """Endless stream over numbered log segments.

    Consumer c of C (all loader workers of all processes) owns the segments c, c + C, c + 2C, ...; it goes round them for ever,
    each time in a new order of its own.
    """

    def __init__(self, segments, rows, seed):
        self.segments, self.rows, self.seed = segments, rows, seed
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])

    def segment(self, s):
        g = torch.Generator().manual_seed(s)
        level = torch.randn(self.rows, 1, generator=g)
        x = level + 0.5 * torch.randn(self.rows, 20, generator=g)
        x[:, 5:10] *= level
        y = (level.squeeze(1) * x[:, 7] > 0.2).float()
        ids = s * self.rows + torch.arange(self.rows)
        return ids, x, y

    def __iter__(self):
        info = get_worker_info()
        wid, per = (info.id, info.num_workers) if info else (0, 1)
        consumer, consumers = self.rank * per + wid, self.world * per
        mine = list(range(consumer, self.segments, consumers))
        rng = random.Random(self.seed * 4001 + consumer)
        for _ in itertools.count():
            rng.shuffle(mine)
            for s in mine:
                ids, x, y = self.segment(s)
                for i in rng.sample(range(self.rows), self.rows):
                    yield ids[i], x[i], y[i]
