"""Sharded record files and a streaming reader for them."""
import json
import os
import random

import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_shards(folder, shards, per_shard, dim, seed):
    os.makedirs(folder, exist_ok=True)
    w = torch.randn(dim, 3, generator=torch.Generator().manual_seed(404))
    g = torch.Generator().manual_seed(seed)
    uid = 0
    for s in range(shards):
        with open(os.path.join(folder, f"part-{s:03d}.jsonl"), "w") as fh:
            for _ in range(per_shard):
                x = torch.randn(dim, generator=g)
                y = int((x @ w + 0.3 * torch.randn(3, generator=g)).argmax())
                fh.write(json.dumps({"uid": uid, "x": [round(v, 4) for v in x.tolist()], "y": y}) + "\n")
                uid += 1


class StreamingRecords(IterableDataset):
    """Reads record files in a shuffled order and mixes them through a small buffer."""

    def __init__(self, folder, seed, buffer=64):
        self.paths = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".jsonl"))
        self.seed = seed
        self.buffer = buffer
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def assigned_paths(self):
        order = list(self.paths)
        random.Random(self.seed + self.epoch).shuffle(order)
        info = get_worker_info()
        if info is not None:
            order = order[info.id::info.num_workers]
        return order

    def records(self):
        for path in self.assigned_paths():
            with open(path) as fh:
                for line in fh:
                    yield json.loads(line)

    def __iter__(self):
        rng = random.Random(1000 * self.seed + self.epoch)
        pool = []
        for rec in self.records():
            if len(pool) < self.buffer:
                pool.append(rec)
                continue
            slot = rng.randrange(self.buffer)
            pool[slot], rec = rec, pool[slot]
            yield self.decode(rec)
        rng.shuffle(pool)
        for rec in pool:
            yield self.decode(rec)

    @staticmethod
    def decode(rec):
        return {"uid": rec["uid"], "x": torch.tensor(rec["x"]), "y": rec["y"]}
