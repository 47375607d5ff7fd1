"""Lightning run with a confusion table that is printed after each validation."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassConfusionMatrix

CLASSES = 4


def make_split(count, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (count,), generator=gen)
    centres = torch.eye(CLASSES, 16) * 2
    return TensorDataset(centres[label] + torch.randn(count, 16, generator=gen), label)


class Net(LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        self.table = MulticlassConfusionMatrix(CLASSES)

    def training_step(self, batch, batch_idx):
        time.sleep(0.12)
        x, y = batch
        return F.cross_entropy(self.body(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.table.update(self.body(x).argmax(-1), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def show(table):
    for row in table.tolist():
        print("  ".join(f"{int(cell):4d}" for cell in row), flush=True)


class TablePrinter(Callback):
    def on_validation_epoch_start(self, trainer, pl_module):
        pl_module.table.reset()

    @rank_zero_only
    def on_validation_epoch_end(self, trainer, pl_module):
        table = pl_module.table.compute()
        accuracy = table.diag().sum() / table.sum()
        print(f"epoch {trainer.current_epoch}: accuracy {accuracy.item():.3f}", flush=True)
        show(table)


def main():
    seed_everything(7)
    train = DataLoader(make_split(512, 1), batch_size=16, shuffle=True)
    valid = DataLoader(make_split(128, 2), batch_size=16)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=4,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TablePrinter()],
    )
    trainer.fit(Net(), train, valid)


if __name__ == "__main__":
    main()
