import torch
from torch.utils.data import Dataset

SIZES = {"train": 768, "val": 96}


class Rows(Dataset):
    def __init__(self, split, start, step):
        g = torch.Generator().manual_seed(len(split))
        n = SIZES[split]
        x = torch.randn(n, 14, generator=g)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
        self.ids = list(range(start, n, step))
        self.x, self.y = x, y

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        k = self.ids[i]
        return self.x[k], self.y[k]


def open_split(split, worker=0, workers=1):
    return Rows(split, worker, workers)
