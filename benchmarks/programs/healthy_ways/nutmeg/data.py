import torch
from torch.utils.data import Dataset


class Shapes(Dataset):
    """Sixteen-pixel pictures of filled squares, discs, crosses and frames."""

    def __init__(self, n, seed, noise=0.35):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
        centre = torch.randint(5, 11, (n, 2), generator=g)
        radius = torch.randint(3, 5, (n,), generator=g)
        self.label = torch.randint(0, 4, (n,), generator=g)
        self.image = torch.empty(n, 1, 16, 16)
        for i in range(n):
            dy, dx, r = (yy - centre[i, 0]).abs(), (xx - centre[i, 1]).abs(), int(radius[i])
            square = (dy <= r) & (dx <= r)
            mask = [square,
                    dy * dy + dx * dx <= r * r,
                    ((dy <= 1) & (dx <= r)) | ((dx <= 1) & (dy <= r)),
                    square & ~((dy < r) & (dx < r))][int(self.label[i])]
            self.image[i, 0] = mask.float()
        self.image += noise * torch.randn(self.image.shape, generator=g)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.image[i], self.label[i]
