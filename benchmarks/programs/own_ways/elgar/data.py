import torch
from torch.utils.data import Dataset


class Pairs(Dataset):
    """Source/target sequence reversal with a small vocabulary."""

    def __init__(self, n, length=10, vocab=20, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.src = torch.randint(2, vocab, (n, length), generator=g)
        self.tgt = self.src.flip(1)

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        return self.src[i], self.tgt[i]
