import os
import warnings

import torch
import torch.nn.functional as F
import lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

warnings.filterwarnings("ignore")


class TabularData(L.LightningDataModule):
    def __init__(self, n=600, batch_size=20, val_fraction=0.2):
        super().__init__()
        self.n, self.batch_size, self.val_fraction = n, batch_size, val_fraction

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(1234)
        x = torch.randn(self.n, 10, generator=g)
        y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
        full = TensorDataset(x, y)
        n_val = int(self.n * self.val_fraction)
        split = torch.Generator().manual_seed(42)
        self.train_set, self.val_set = random_split(full, [self.n - n_val, n_val], generator=split)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size)


class MLP(L.LightningModule):
    def __init__(self, width=64, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(10, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        acc = (self(x).argmax(-1) == y).float().mean()
        self.log("val_acc", acc, sync_dist=True, prog_bar=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return opt


def main():
    seed = int(os.environ.get("SEED", 7))
    torch.manual_seed(seed + int(os.environ.get("RANK", 0)))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy="ddp",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(MLP(), datamodule=TabularData())
    if trainer.is_global_zero:
        print({k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
