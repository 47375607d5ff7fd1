import random

import torch
from torch.utils.data import Dataset

CATEGORIES = {"garden": 0, "kitchen": 1, "toys": 2, "books": 3, "music": 4, "sport": 5}
CHANNELS = {"web": 0, "app": 1, "store": 2}


def make_orders(n=4800, seed=0):
    rng = random.Random(seed)
    cats, chans = list(CATEGORIES), list(CHANNELS)
    rows = []
    for i in range(n):
        seq = [rng.choice(cats) for _ in range(rng.randint(4, 12))]
        chan = "phone" if i == 3457 else rng.choice(chans)
        score = sum(1.0 if c in ("books", "music") else -0.4 for c in seq) + CHANNELS.get(chan, 0)
        rows.append({"items": seq, "channel": chan, "returned": int(score + rng.gauss(0, 1) > 1)})
    return rows


class Orders(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def encode(rows):
    width = max(len(r["items"]) for r in rows)
    items = torch.full((len(rows), width), len(CATEGORIES))
    for i, r in enumerate(rows):
        items[i, : len(r["items"])] = torch.tensor([CATEGORIES[c] for c in r["items"]])
    channel = torch.tensor([CHANNELS[r["channel"]] for r in rows])
    label = torch.tensor([float(r["returned"]) for r in rows])
    return items, channel, label
