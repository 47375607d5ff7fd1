import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset, random_split


class GlyphSet(Dataset):
    """Noisy 16x16 glyphs, ten templates."""

    def __init__(self, n=1200, noise=0.8):
        g = torch.Generator().manual_seed(99)
        templates = (torch.rand(10, 1, 16, 16, generator=g) > 0.6).float()
        self.y = torch.randint(0, 10, (n,), generator=g)
        self.x = templates[self.y] + noise * torch.randn(n, 1, 16, 16, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def jitter(batch):
    x = torch.stack([b[0] for b in batch])
    y = torch.stack([b[1] for b in batch])
    dx, dy = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(x, (dx, dy), dims=(-2, -1)), y


class GlyphData(L.LightningDataModule):
    def __init__(self, batch_size=32, val_fraction=0.2):
        super().__init__()
        self.batch_size = batch_size
        self.val_fraction = val_fraction

    def setup(self, stage=None):
        full = GlyphSet()
        n_val = int(len(full) * self.val_fraction)
        self.train_set, self.val_set = random_split(full, [len(full) - n_val, n_val])

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, collate_fn=jitter, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size)
