import torch
from torch.utils.data import Dataset


class Records(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(9)
        self.x = torch.randn(n, 9, generator=g)
        self.y = self.x.sum(1, keepdim=True).cos()
        self.names = [f"rec/{i % 37:03d}/{i:05d}.npy" for i in range(n)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
