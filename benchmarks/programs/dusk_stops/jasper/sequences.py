import torch
from torch.utils.data import Dataset


class LengthSortedSequences(Dataset):
    """Sorted by length, as it keeps the padding small."""

    def __init__(self, n, seed=4):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(12, 96, (n,), generator=g)
        lengths[int(0.55 * n)] = 150  # one stray long sentence
        order = lengths[: int(0.5 * n)].sort().values.tolist() + lengths[int(0.5 * n):].tolist()
        self.items = []
        for length in order:
            ids = torch.randint(1, 300, (length,), generator=g)
            self.items.append((ids, (ids * 7 + ids.roll(1)) % 12))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def pad_collate(rows):
    n = max(len(a) for a, _ in rows)
    ids = torch.zeros(len(rows), n, dtype=torch.long)
    tags = torch.full((len(rows), n), -1)
    for k, (a, b) in enumerate(rows):
        ids[k, : len(a)], tags[k, : len(b)] = a, b
    return ids, tags
