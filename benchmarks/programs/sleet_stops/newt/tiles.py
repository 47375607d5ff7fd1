import torch
from torch.utils.data import Dataset


class Tiles(Dataset):
    """Satellite tiles with a cloud mask, made on the fly."""

    def __init__(self, n, journal, size=24):
        self.n, self.journal, self.size = n, journal, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        coarse = torch.rand(1, 1, 4, 4, generator=g)
        mask = (nn_up(coarse, self.size) > 0.55).float()[0]
        img = 0.3 * torch.randn(3, self.size, self.size, generator=g) + mask
        if mask.mean() > 0.9:
            self.journal.count("overcast")
        self.journal.count("tiles")
        return img, mask


def nn_up(x, size):
    return torch.nn.functional.interpolate(x, size=(size, size), mode="bilinear")
