import argparse
import os
import tempfile

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, random_split

from callbacks import ConfusionSketch, ThroughputMeter
from patterns import StripeImages


class StripeNet(pl.LightningModule):
    def __init__(self, channels: int = 12, classes: int = 6, lr: float = 3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.GroupNorm(3, channels), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, channels * 2, 3, padding=1), nn.GroupNorm(3, channels * 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )
        self.head = nn.Linear(channels * 8, classes)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(-1) == y).float().mean(), sync_dist=True)
        return {"pred": logits.argmax(-1), "target": y}

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=self.trainer.max_epochs)
        return {"optimizer": opt, "lr_scheduler": sched}


class StripeData(pl.LightningDataModule):
    def __init__(self, size, batch, seed):
        super().__init__()
        self.size, self.batch, self.seed = size, batch, seed

    def setup(self, stage):
        full = StripeImages(self.size, self.seed)
        held = self.size // 5
        self.train, self.val = random_split(
            full, [self.size - held, held], generator=torch.Generator().manual_seed(self.seed)
        )

    def train_dataloader(self):
        return DataLoader(self.train, self.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=640)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--seed", type=int, default=21)
    ap.add_argument("--sketch-every", type=int, default=1)
    args = ap.parse_args()
    pl.seed_everything(args.seed)
    torch.set_num_threads(1)
    root = os.path.join(tempfile.gettempdir(), "yamuna_runs")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=args.epochs,
        num_sanity_val_steps=0,
        logger=CSVLogger(root, name="stripes"),
        callbacks=[ThroughputMeter(every=10), ConfusionSketch(classes=6, every=args.sketch_every)],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=5,
    )
    trainer.fit(StripeNet(), datamodule=StripeData(args.size, args.batch, args.seed))
    if trainer.is_global_zero:
        print("final", {k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()}, flush=True)


if __name__ == "__main__":
    main()
