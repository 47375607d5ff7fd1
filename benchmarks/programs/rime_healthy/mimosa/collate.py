import torch
from torch.utils.data import Dataset

PAD, IGNORE = 0, -100


class Sentences(Dataset):
    """Prompt/answer pairs; only the answer counts in the loss."""

    def __init__(self, n, seed, vocab=24):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            k = int(torch.randint(3, 14, (1,), generator=g))
            a = torch.randint(2, vocab, (k,), generator=g)
            self.rows.append((a, a.sort().values))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        prompt, answer = self.rows[i]
        ids = torch.cat([prompt, torch.tensor([1]), answer])
        labels = ids.clone()
        labels[: len(prompt) + 1] = IGNORE
        return ids, labels


def collate(rows):
    n = max(len(r[0]) for r in rows)
    ids = torch.full((len(rows), n), PAD)
    labels = torch.full((len(rows), n), IGNORE)
    for i, (a, b) in enumerate(rows):
        ids[i, : len(a)] = a
        labels[i, : len(b)] = b
    return ids, labels
