import torch
from torch.utils.data import Dataset


class TicketCorpus(Dataset):
    """Support tickets of different length; the class shows in the token mixture."""

    def __init__(self, n, vocab=120, classes=4, seed=0, longest=34, outlier_every=0):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n):
            y = int(torch.randint(classes, (1,), generator=g))
            length = int(torch.randint(8, longest, (1,), generator=g))
            if outlier_every and i % outlier_every == outlier_every - 1:
                length = 57
            own = torch.randint(1 + y * 25, 26 + y * 25, (length,), generator=g)
            noise = torch.randint(1, vocab, (length,), generator=g)
            mix = torch.rand(length, generator=g) < 0.55
            self.items.append((torch.where(mix, own, noise), y))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    width = max(len(t) for t, _ in items)
    ids = torch.zeros(len(items), width, dtype=torch.long)
    for row, (t, _) in enumerate(items):
        ids[row, :len(t)] = t
    return ids, torch.tensor([y for _, y in items])
