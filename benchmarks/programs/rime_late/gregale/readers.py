"""Event log reader. Who reads an event is decided by the hash of its user, so that all
events of one user meet in one reader, in order."""
import csv
import random
import zlib

import torch
from torch.utils.data import IterableDataset, get_worker_info

PAGES = 24


def write_log(path, users, length, seed):
    rng = random.Random(seed)
    rows = []
    for u in range(users):
        page = rng.randrange(PAGES)
        for t in range(length):
            rows.append((t + rng.random(), f"user{u:05d}", page))
            page = (page * 5 + 7) % PAGES if rng.random() < 0.8 else rng.randrange(PAGES)
    rows.sort()
    with open(path, "w", newline="") as handle:
        out = csv.writer(handle)
        out.writerow(["user", "page"])
        out.writerows((user, page) for _, user, page in rows)


class Visits(IterableDataset):
    """(three pages, next page) for the users of this reader; starts over at the end of the log."""

    def __init__(self, path, rank, world, mix=256, seed=0):
        self.path, self.rank, self.world, self.mix, self.seed = path, rank, world, mix, seed

    def _pairs(self, reader, readers):
        recent = {}
        with open(self.path, newline="") as handle:
            for row in csv.DictReader(handle):
                if zlib.crc32(row["user"].encode()) % readers != reader:
                    continue
                trail = recent.setdefault(row["user"], [])
                trail.append(int(row["page"]))
                if len(trail) == 4:
                    yield torch.tensor(trail[:3]), trail[3]
                    del trail[0]

    def __iter__(self):
        info = get_worker_info()
        workers = info.num_workers if info else 1
        reader = self.rank * workers + (info.id if info else 0)
        rng = random.Random(self.seed * 1009 + reader)
        held = []
        while True:
            for pair in self._pairs(reader, self.world * workers):
                if len(held) < self.mix:
                    held.append(pair)
                    continue
                spot = rng.randrange(self.mix)
                pair, held[spot] = held[spot], pair
                yield pair
