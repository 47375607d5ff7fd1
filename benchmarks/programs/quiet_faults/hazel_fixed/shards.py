import json
import random
from pathlib import Path

from torch.utils.data import IterableDataset


def write_shards(folder, count=6, rows=128, dim=16, seed=9):
    rng = random.Random(seed)
    proto = [[random.Random(100 + k).gauss(0, 1) for _ in range(dim)] for k in range(5)]
    number = 0
    for s in range(count):
        with open(Path(folder) / f"shard-{s:04d}.jsonl", "w") as f:
            for _ in range(rows):
                label = rng.randrange(5)
                vec = [round(v + rng.gauss(0, 0.9), 4) for v in proto[label]]
                f.write(json.dumps({"id": number, "vec": vec, "label": label}) + "\n")
                number += 1


class JsonlStream(IterableDataset):
    """Every process streams its own files; a small buffer shuffles the rows."""

    def __init__(self, folder, rank, world, buffer=64, seed=0):
        files = sorted(Path(folder).glob("shard-*.jsonl"))
        self.files = files[rank::world]
        self.rank = rank
        self.buffer = buffer
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def rows(self, rng):
        order = list(self.files)
        rng.shuffle(order)
        for path in order:
            with open(path) as f:
                for line in f:
                    yield json.loads(line)

    def __iter__(self):
        rng = random.Random(f"{self.seed}-{self.rank}-{self.epoch}")
        held = []
        for row in self.rows(rng):
            if len(held) < self.buffer:
                held.append(row)
                continue
            at = rng.randrange(self.buffer)
            held[at], row = row, held[at]
            yield row
        rng.shuffle(held)
        yield from held
