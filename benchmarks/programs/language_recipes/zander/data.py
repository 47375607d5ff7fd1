"""Instruction-like samples of very different lengths."""
import torch
from torch.utils.data import Dataset

from losses import IGNORE

PAD, BOS = 0, 1
VOCAB = 64


class InstructionSet(Dataset):
    def __init__(self, size: int, max_len: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(size):
            plen = int(torch.randint(2, 8, (1,), generator=g))
            alen = int(torch.randint(2, max_len - 9, (1,), generator=g))
            a, d = torch.randint(2, VOCAB, (2,), generator=g).tolist()
            ids = [BOS] + [2 + (a - 2 + (d % 4 + 1) * k) % (VOCAB - 2) for k in range(plen + alen)]
            self.items.append((torch.tensor(ids), plen + 1))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    longest = max(len(ids) for ids, _ in items)
    ids = torch.full((len(items), longest), PAD)
    labels = torch.full((len(items), longest), IGNORE)
    for r, (row, plen) in enumerate(items):
        ids[r, :len(row)] = row
        labels[r, plen:len(row)] = row[plen:]
    return ids, labels
