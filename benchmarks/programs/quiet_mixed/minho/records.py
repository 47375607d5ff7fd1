import json
import os
import random

import torch
from torch.utils.data import Dataset


def write_records(path, n, vocab, seed=1):
    rng = random.Random(seed)
    with open(path + ".tmp", "w") as f:
        for i in range(n):
            label = rng.randint(0, 3)
            text = [rng.randint(1, vocab - 1) for _ in range(rng.randint(8, 16))]
            text[rng.randrange(len(text))] = vocab - 1 - label
            f.write(json.dumps({"id": i, "text": text, "label": label}) + "\n")
    os.replace(path + ".tmp", path)


class Records(Dataset):
    def __init__(self, paths, length):
        self.length = length
        rows = []
        for path in paths:
            with open(path) as f:
                rows.extend(json.loads(line) for line in f)
        random.Random(2024).shuffle(rows)
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        ids = row["text"][: self.length]
        pad = self.length - len(ids)
        return {
            "input_ids": torch.tensor(ids + [0] * pad),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * pad),
            "labels": row["label"],
        }
