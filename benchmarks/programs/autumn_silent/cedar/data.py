import torch
from torch.utils.data import Dataset


class BlobImages(Dataset):
    """10-class images: a noisy class template at a random shift."""

    def __init__(self, size, seed):
        gen = torch.Generator().manual_seed(1234)
        self.templates = torch.randn(10, 3, 16, 16, generator=gen)
        gen = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 10, (size,), generator=gen)
        self.shifts = torch.randint(-2, 3, (size, 2), generator=gen)
        self.noise = torch.randint(0, 2 ** 31, (size,), generator=gen)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(int(self.noise[i]))
        img = torch.roll(self.templates[self.labels[i]], tuple(self.shifts[i].tolist()), dims=(1, 2))
        return img + 1.2 * torch.randn(img.shape, generator=gen), self.labels[i]
