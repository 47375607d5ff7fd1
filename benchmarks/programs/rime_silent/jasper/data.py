import random

import torch
from torch.utils.data import Dataset

IGNORE = -100


class Instructions(Dataset):
    """prompt + answer pairs; only the answer is supervised. Answers range from one token to a paragraph."""

    def __init__(self, n, vocab=200, seed=0, max_answer=120):
        rnd = random.Random(seed)
        self.rows = []
        for _ in range(n):
            prompt = [rnd.randrange(3, vocab) for _ in range(rnd.randint(4, 10))]
            k = min(max_answer, max(1, int(rnd.lognormvariate(2.2, 1.2))))
            step = 1 if k < 10 else prompt[0] % 5 + 2
            answer = [3 + (prompt[-1] + step * j) % (vocab - 3) for j in range(k)] + [2]
            self.rows.append((prompt, answer))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(p) + len(a) for p, a in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORE)
    for i, (p, a) in enumerate(rows):
        ids[i, :len(p) + len(a)] = torch.tensor(p + a)
        labels[i, len(p):len(p) + len(a)] = torch.tensor(a)
    return {"input_ids": ids[:, :-1], "labels": labels[:, 1:]}
