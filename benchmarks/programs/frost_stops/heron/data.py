import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset


class BlobModule(LightningDataModule):
    def __init__(self, n_train=512, n_val=128, dim=16, classes=5, batch_size=16, seed=11):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        hp = self.hparams
        g = torch.Generator().manual_seed(hp.seed)
        centers = torch.randn(hp.classes, hp.dim, generator=g) * 2.0

        def make(n):
            y = torch.randint(0, hp.classes, (n,), generator=g)
            x = centers[y] + torch.randn(n, hp.dim, generator=g)
            return TensorDataset(x, y)

        self.train_set = make(hp.n_train)
        self.val_set = make(hp.n_val)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size)
