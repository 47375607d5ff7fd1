import json
import os
import random

import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_shards(folder, shards, rows, vocab, seq, seed):
    os.makedirs(folder, exist_ok=True)
    rnd = random.Random(seed)
    for s in range(shards):
        with open(os.path.join(folder, f"part-{s:04d}.jsonl"), "w") as f:
            for r in range(rows):
                topic = rnd.randrange(8)
                toks = [(topic * 16 + rnd.randrange(24)) % vocab for _ in range(seq)]
                f.write(json.dumps({"id": s * rows + r, "tokens": toks, "topic": topic}) + "\n")


class JsonlStream(IterableDataset):
    """Reads *.jsonl line by line, with a small shuffle buffer."""

    def __init__(self, folder, rank, world_size, shuffle_buffer=64, seed=0):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".jsonl"))
        self.rank, self.world_size = rank, world_size
        self.buffer, self.seed, self.epoch = shuffle_buffer, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _my_files(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        files = list(self.files)
        random.Random(self.seed + self.epoch).shuffle(files)
        return files[worker::workers]

    def _rows(self):
        for path in self._my_files():
            with open(path) as f:
                for line in f:
                    row = json.loads(line)
                    yield torch.tensor(row["tokens"]), row["topic"]

    def __iter__(self):
        rnd = random.Random(1000 * self.rank + self.seed + self.epoch)
        buf = []
        for row in self._rows():
            if len(buf) < self.buffer:
                buf.append(row)
                continue
            i = rnd.randrange(self.buffer)
            yield buf[i]
            buf[i] = row
        rnd.shuffle(buf)
        yield from buf
