import lightning as L
import torch
import torch.nn as nn
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset


class Signals(L.LightningDataModule):
    """One-dimensional signals in five families."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    @staticmethod
    def make(n, seed, length=96):
        g = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 1, length)
        y = torch.arange(n) % 5
        f = 3 + 2 * y[:, None].float() + 0.7 * torch.rand(n, 1, generator=g)
        s = torch.sin(6.283 * (f * t + torch.rand(n, 1, generator=g)))
        return TensorDataset((s + 0.8 * torch.randn(n, length, generator=g))[:, None], y)

    def setup(self, stage):
        self.train, self.val = self.make(3072, 1), self.make(800, 2)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, 100)


class Classifier(L.LightningModule):
    def __init__(self, width=32, lr=3e-3, total_steps=1):
        super().__init__()
        self.save_hyperparameters()
        c = lambda i, o: nn.Sequential(nn.Conv1d(i, o, 5, 2, 2), nn.GroupNorm(4, o), nn.SiLU())
        self.net = nn.Sequential(c(1, width), c(width, width), c(width, 2 * width), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                                 nn.Dropout(0.1), nn.Linear(2 * width, 5))
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.05)
        self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=5)
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=5, average="macro")

    def training_step(self, batch, _):
        x, y = batch
        loss = self.loss(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        p = self.net(x)
        self.acc(p, y)
        self.f1(p, y)
        self.log("val_loss", self.loss(p, y), sync_dist=True)
        self.log_dict({"val_acc": self.acc, "val_f1": self.f1})

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        sch = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=self.hparams.total_steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sch, "interval": "step"}}
