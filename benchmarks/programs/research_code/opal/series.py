import torch
from torch.utils.data import Dataset


class WindowedSeries(Dataset):
    channels, context, horizon = 3, 24, 6

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(self.context + self.horizon, dtype=torch.float32)
        f = 0.1 + 0.4 * torch.rand(n, 1, self.channels, generator=g)
        p = 6.28 * torch.rand(n, 1, self.channels, generator=g)
        a = 0.5 + torch.rand(n, 1, self.channels, generator=g)
        x = a * torch.sin(f * t[None, :, None] + p)
        self.x = x + 0.05 * torch.randn(x.shape, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i, :self.context], self.x[i, self.context:]
