import random

import torch
from torch.utils.data import Dataset

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"
STOI = {c: i + 1 for i, c in enumerate(ALPHABET)}
WORDS = "the river ran past old mills and quiet towns where barges wait for water to rise again".split()


def make_lines(count, seed):
    rng = random.Random(seed)
    lines = []
    for i in range(count):
        n = rng.randrange(8, 16)
        text = " ".join(rng.choice(WORDS) for _ in range(n))
        lines.append(text + ".")
    lines[count // 2 + 5] = ""
    return lines


class Lines(Dataset):
    def __init__(self, lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return [STOI[c] for c in self.lines[i]]


def collate(samples, block=64):
    rows = torch.zeros(len(samples), block + 1, dtype=torch.long)
    for r, ids in enumerate(samples):
        while len(ids) < block + 1:
            ids = ids + ids[: block + 1 - len(ids)]
            if not ids:
                raise ValueError(f"row {r} of the batch holds no characters")
        rows[r] = torch.tensor(ids[: block + 1])
    return rows[:, :-1], rows[:, 1:]
