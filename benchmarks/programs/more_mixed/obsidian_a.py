"""Lightning image-patch classifier with its own shard logic in the data module."""
import argparse
import logging
import os
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Patches(Dataset):
    def __init__(self, n=768, seed=17):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        self.x = 0.5 * torch.randn(n, 1, 8, 8, generator=g)
        for i, c in enumerate(self.y.tolist()):
            self.x[i, 0, (c // 2) * 4:(c // 2) * 4 + 4, (c % 2) * 4:(c % 2) * 4 + 4] += 0.6

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"idx": i, "image": self.x[i], "label": self.y[i]}


class PatchData(L.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        full = Patches()
        rank, world = self.trainer.global_rank, self.trainer.world_size
        self.train = Subset(full, range(rank, len(full), world))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True, drop_last=True)


class PatchNet(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["image"]), batch["label"])
        self.log("train/loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} step {self.global_step}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=24)
    args = ap.parse_args()
    L.seed_everything(3, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PatchNet(2e-3), datamodule=PatchData(args.batch_size))


if __name__ == "__main__":
    main()
