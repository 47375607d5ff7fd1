import torch
from torch.utils.data import Dataset


class Signals(Dataset):
    def __init__(self, n, tokens=32, patch=12, classes=4, seed=2):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(tokens * patch) / (tokens * patch) * 6.283
        self.y = torch.randint(0, classes, (n,), generator=g)
        f = (self.y + 2).float()[:, None]
        p = torch.rand(n, 1, generator=g) * 6.283
        self.x = (torch.sin(f * t + p) + 0.5 * torch.randn(n, len(t), generator=g)).view(n, tokens, patch)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
