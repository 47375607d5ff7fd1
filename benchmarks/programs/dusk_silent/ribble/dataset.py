import torch
from torch.utils.data import Dataset


class Blobs(Dataset):
    """Images with up to three ellipses of two classes on textured ground, pixel labels 0..2."""

    def __init__(self, size, seed, res=40):
        self.size, self.seed, self.res = size, seed, res
        axis = torch.arange(res).float()
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100_003 + i)
        mask = torch.zeros(self.res, self.res, dtype=torch.long)
        image = 0.4 * torch.randn(3, self.res, self.res, generator=g)
        for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
            cy, cx = torch.rand(2, generator=g) * self.res
            ry, rx = 4 + torch.rand(2, generator=g) * 8
            inside = ((self.yy - cy) / ry) ** 2 + ((self.xx - cx) / rx) ** 2 < 1
            cls = 1 + int(torch.randint(0, 2, (1,), generator=g))
            mask[inside] = cls
            image[cls, inside] += 0.6
        return image, mask
