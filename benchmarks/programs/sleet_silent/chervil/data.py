"""Streaming review corpus. Each shard is generated on the fly from its id."""
import numpy as np
import torch
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node

VOCAB = 400
MAX_LEN = 32
ROWS_PER_SHARD = 180


def read_shards(shards):
    for sid in shards:
        rng = np.random.default_rng(1000 + sid)
        for row in range(ROWS_PER_SHARD):
            label = int(rng.integers(0, 3))
            n = int(rng.integers(8, MAX_LEN))
            ids = rng.integers(3, VOCAB, size=n)
            hint = rng.random(n) < 0.25
            ids = np.where(hint, 3 + label * 20 + rng.integers(0, 20, size=n), ids)
            yield {"uid": sid * ROWS_PER_SHARD + row, "input_ids": ids.tolist(), "label": label}


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, : len(r["input_ids"])] = torch.tensor(r["input_ids"])
    return {
        "uid": torch.tensor([r["uid"] for r in rows]),
        "input_ids": ids,
        "mask": ids.ne(0),
        "label": torch.tensor([r["label"] for r in rows]),
    }


def build_stream(n_shards, seed, rank, world_size, buffer_size=400):
    stream = IterableDataset.from_generator(read_shards, gen_kwargs={"shards": list(range(n_shards))})
    stream = stream.shuffle(seed=seed, buffer_size=buffer_size)
    return split_dataset_by_node(stream, rank=rank, world_size=world_size)
