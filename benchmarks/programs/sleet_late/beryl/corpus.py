"""Toy 'review' corpus cut into text shards that live in memory."""
import random

import torch
from torch.utils.data import IterableDataset, get_worker_info

WORDS = ("fine dull sharp heavy light warm cold quick slow bright sour sweet plain loud calm rough "
         "soft thin thick deep").split()
VOCAB = {w: i + 1 for i, w in enumerate(WORDS)}
POSITIVE = set(WORDS[::3])


def build_shards(num_shards=8, per_shard=48, seed=11):
    rng = random.Random(seed)
    shards = []
    for s in range(num_shards):
        rows = []
        for i in range(per_shard):
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(6, 18)))
            rows.append({"key": f"{s:03d}-{i:04d}", "text": text})
        shards.append(rows)
    return shards


def encode(row, max_len=20):
    toks = [VOCAB[w] for w in row["text"].split()][:max_len]
    score = sum(w in POSITIVE for w in row["text"].split()) / len(toks)
    padded = toks + [0] * (max_len - len(toks))
    return torch.tensor(padded), torch.tensor(float(score > 0.35))


class ReviewStream(IterableDataset):
    def __init__(self, shards, rank, world_size, seed=0):
        self.shards = shards
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _my_shards(self):
        info = get_worker_info()
        wid = info.id if info is not None else 0
        count = info.num_workers if info is not None else 1
        mine = self.shards[self.rank::self.world_size][wid::count]
        return mine, wid

    def __iter__(self):
        shards, wid = self._my_shards()
        rng = random.Random(f"{self.seed}/{self.epoch}/{self.rank}/{wid}")
        pool = [row for shard in shards for row in shard]
        rng.shuffle(pool)
        for row in pool:
            yield encode(row)
