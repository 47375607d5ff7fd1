import torch
from torch.utils.data import Dataset


def documents(n=420):
    g = torch.Generator().manual_seed(52)
    out = []
    for i in range(n):
        length = int(torch.randint(6, 40, (1,), generator=g))
        start, stride = torch.randint(0, 50, (2,), generator=g).tolist()
        out.append((start + (1 + stride % 3) * torch.arange(length)) % 50)
    return out


class Filtered(Dataset):
    """A rank's part of the corpus, without documents that are too long for the context."""

    def __init__(self, docs, rank, world, max_length=30):
        self.docs = [d for d in docs[rank::world] if len(d) <= max_length]
        self.max_length = max_length

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        d = self.docs[i]
        ids = torch.full((self.max_length,), 50)
        ids[:len(d)] = d
        return ids
