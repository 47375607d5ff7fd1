import torch
from torch.utils.data import Dataset


class GlyphSet(Dataset):
    """12x12 bars, rings, crosses, corners and dots with jitter."""

    def __init__(self, n, classes, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, classes, (n,), generator=g)
        yy, xx = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
        imgs = []
        for c in self.y.tolist():
            cx, cy = (5.5 + torch.randn(2, generator=g)).tolist()
            dx, dy = xx - cx, yy - cy
            r = (dx ** 2 + dy ** 2).sqrt()
            im = [lambda: dx.abs() < 1.5, lambda: (r - 3.5).abs() < 1.0, lambda: (dx.abs() < 1) | (dy.abs() < 1),
                  lambda: (dx > 0) & (dy > 0), lambda: r < 2.0][c]()
            imgs.append(im.float() * 1.8 - 0.9)
        self.x = torch.stack(imgs).unsqueeze(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
