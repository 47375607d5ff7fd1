import random

import torch
from torch.utils.data import Dataset

HEARTBEAT = 1


class Sessions(Dataset):
    """Event ids per visit plus whether the visit converted."""

    def __init__(self, n, seed, vocab=60):
        rnd = random.Random(seed)
        self.rows = []
        for i in range(n):
            y = rnd.randrange(2)
            k = rnd.randint(3, 24)
            ev = [HEARTBEAT if rnd.random() < 0.3 else rnd.randrange(2, vocab - 20 * (1 - y)) for _ in range(k)]
            if i % 1000 == 577:
                ev = [HEARTBEAT] * k
            self.rows.append((ev, y))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(ev) for ev, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (ev, _) in enumerate(rows):
        ids[i, :len(ev)] = torch.tensor(ev)
    ignore = (ids == 0) | (ids == HEARTBEAT)
    return ids, ignore, torch.tensor([y for _, y in rows], dtype=torch.float32)
