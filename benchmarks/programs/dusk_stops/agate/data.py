import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


def blobs(n, dim, classes, seed):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, dim, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(centers[y] + 1.7 * torch.randn(n, dim, generator=g), y)


class BlobsDataModule(L.LightningDataModule):
    def __init__(self, batch_size, dim=256, classes=6):
        super().__init__()
        self.batch_size, self.dim, self.classes = batch_size, dim, classes

    def setup(self, stage=None):
        self.train_set = blobs(3200, self.dim, self.classes, 2)
        self.val_set = blobs(640, self.dim, self.classes, 3)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, 64)
