"""Synthetic land-cover tiles: a few shapes on noise, 255 where the annotators left the pixel open."""
import torch
from torch.utils.data import Dataset

IGNORE = 255
NUM_CLASSES = 4


class TileDataset(Dataset):
    def __init__(self, count: int, size: int = 24, seed: int = 0, clouded: float = 0.25):
        gen = torch.Generator().manual_seed(seed)
        self.images = torch.randn(count, 3, size, size, generator=gen) * 0.3
        self.masks = torch.zeros(count, size, size, dtype=torch.long)
        for i in range(count):
            for cls in range(1, NUM_CLASSES):
                y, x = torch.randint(0, size - 8, (2,), generator=gen).tolist()
                h, w = torch.randint(4, 8, (2,), generator=gen).tolist()
                self.masks[i, y:y + h, x:x + w] = cls
                self.images[i, cls - 1, y:y + h, x:x + w] += 1.0
            if torch.rand((), generator=gen) < clouded:
                self.masks[i] = IGNORE
                self.images[i] = 1.5 + 0.05 * torch.randn(3, size, size, generator=gen)
            else:
                self.masks[i, :2] = IGNORE

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.masks[index]
