import random

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD = 0


class Dialogue(Dataset):
    """Alternating turns: long explanations and short confirmations."""

    def __init__(self, turns, vocab, seed=12):
        rng = random.Random(seed)
        self.rows = []
        for t in range(turns):
            n = rng.randint(40, 60) if t % 2 == 0 else rng.randint(5, 8)
            step = 3 if t % 2 == 0 else 5
            first = rng.randint(1, vocab - 1)
            row = [(first + step * k) % (vocab - 1) + 1 for k in range(n)]
            row[:3] = [rng.randint(1, vocab - 1) for _ in range(3)]
            self.rows.append(row)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows, width=60):
    return torch.tensor([r + [PAD] * (width - len(r)) for r in rows])


def make_loader(cfg):
    ds = Dialogue(cfg.turns, cfg.vocab)
    sampler = DistributedSampler(ds, shuffle=False)
    return DataLoader(ds, batch_size=cfg.micro_batch, sampler=sampler, collate_fn=collate)
