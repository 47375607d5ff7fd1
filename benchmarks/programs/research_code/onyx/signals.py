import torch
from torch.utils.data import Dataset


class SignalSet(Dataset):
    classes = 5

    def __init__(self, n, seed, views, length=96, salt=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 1, length)
        self.y = torch.randint(0, self.classes, (n,), generator=g)
        f = torch.tensor([3.0, 5.0, 7.0, 9.0, 12.0])[self.y] + 0.4 * torch.randn(n, generator=g)
        ph = torch.rand(n, generator=g) * 6.28
        self.x = torch.sin(6.28 * f[:, None] * t + ph[:, None]) + 0.5 * torch.randn(n, length, generator=g)
        self.views, self.seed, self.salt, self.epoch = views, seed, salt, 0

    def set_epoch(self, e):
        self.epoch = e

    def __len__(self):
        return len(self.y)

    def raw(self, i):
        return self.x[i].unsqueeze(0)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(hash((self.seed, self.salt, self.epoch, i)) % (1 << 31))
        out = []
        for _ in range(self.views):
            s = int(torch.randint(-12, 13, (1,), generator=g))
            v = self.x[i].roll(s) * (0.7 + 0.6 * torch.rand(1, generator=g)) + 0.2 * torch.randn(self.x.shape[1], generator=g)
            out.append(v.unsqueeze(0))
        return tuple(out), self.y[i]
