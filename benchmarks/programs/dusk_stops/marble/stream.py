"""Synthetic reviews in shards; every second one comes from a chat source with many very short texts."""
import random

import torch
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node


def _generate(shards, per_shard, vocab):
    for s in shards:
        rng = random.Random(s)
        short_share = 0.05 if s % 2 == 0 else 0.30
        for _ in range(per_shard):
            label = rng.randrange(4)
            n = rng.randint(2, 5) if rng.random() < short_share else rng.randint(8, 40)
            lo = 1 + label * (vocab // 5)
            ids = [rng.randrange(lo, lo + vocab // 5) if rng.random() < 0.4 else rng.randrange(1, vocab)
                   for _ in range(n)]
            yield {"ids": ids, "label": label}


def build_stream(n_shards, per_shard, vocab, min_tokens, rank, world):
    ds = IterableDataset.from_generator(
        _generate, gen_kwargs={"shards": list(range(n_shards)), "per_shard": per_shard, "vocab": vocab})
    ds = split_dataset_by_node(ds, rank=rank, world_size=world)
    ds = ds.filter(lambda r: len(r["ids"]) >= min_tokens)
    return ds.shuffle(seed=13, buffer_size=200)


def collate(rows):
    n = max(len(r["ids"]) for r in rows)
    ids = torch.zeros(len(rows), n, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, : len(r["ids"])] = torch.tensor(r["ids"])
    return ids, torch.tensor([r["label"] for r in rows])
