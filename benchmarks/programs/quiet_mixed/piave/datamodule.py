import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Mixture(L.LightningDataModule):
    def __init__(self, train=1024, val=2048, dim=32, batch=64):
        super().__init__()
        self.train, self.val, self.dim, self.batch = train, val, dim, batch

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(0)
        basis = torch.randn(6, self.dim, generator=g)
        x = torch.randn(self.train + self.val, 6, generator=g) @ basis
        self.sets = TensorDataset(x[: self.train]), TensorDataset(x[self.train:])

    def train_dataloader(self):
        return DataLoader(self.sets[0], self.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.sets[1], 256)
