import torch
from torch.utils.data import Dataset


class KeywordTask(Dataset):
    vocab, classes, length = 50, 4, 16

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randint(8, self.vocab, (n, self.length), generator=g)
        self.y = torch.randint(0, self.classes, (n,), generator=g)
        for i in range(n):
            pos = torch.randperm(self.length, generator=g)[:2]
            self.x[i, pos] = torch.tensor([2 * int(self.y[i]), 2 * int(self.y[i]) + 1])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
