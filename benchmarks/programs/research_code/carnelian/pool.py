import torch
from torch.utils.data import Dataset


class Pool:
    def __init__(self, x, y, classes):
        self.x, self.y, self.classes, self.dim = x, y, classes, x.shape[1]

    def __len__(self):
        return len(self.x)


def make_pool(n, seed, dim=10, classes=4):
    g = torch.Generator().manual_seed(seed)
    centers = 1.6 * torch.randn(classes * 3, dim, generator=torch.Generator().manual_seed(5))
    k = torch.randint(0, classes * 3, (n,), generator=g)
    return Pool(centers[k] + torch.randn(n, dim, generator=g), k % classes, classes)


class Oracle(Dataset):
    """Gives labels only for what was asked."""

    def __init__(self, pool):
        self.pool = pool
        self.answers = {}

    def query(self, idx):
        for i in idx:
            self.answers[i] = int(self.pool.y[i])

    def __len__(self):
        return len(self.pool)

    def __getitem__(self, i):
        return self.pool.x[i], self.answers[i]
