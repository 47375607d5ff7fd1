"""Lightning module trained under torchrun; one process writes slow reports while the other waits."""
import argparse
import json
import logging
import os
import time
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


def ions(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(16, 3, generator=torch.Generator().manual_seed(6))
    x = torch.randn(n, 16, generator=g)
    logits = 1.2 * x @ w + 1.5 * (x[:, :3] * x[:, 3:6])
    return TensorDataset(x, logits.argmax(1))


class Ions(L.LightningDataModule):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def setup(self, stage):
        self.train, self.val = ions(1920, 1), ions(480, 2)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=60)


class IonNet(L.LightningModule):
    def __init__(self, lr=4e-3, width=64, drop=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(drop),
                                 nn.Linear(width, width), nn.GELU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        out = self(x)
        self.log("val_loss", F.cross_entropy(out, y), sync_dist=True)
        self.log("val_acc", (out.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Report(Callback):
    """The first process renders a report; the rest wait for it before the next epoch."""

    def __init__(self, folder, render_seconds):
        self.folder, self.render_seconds = folder, render_seconds

    def on_validation_epoch_end(self, trainer, module):
        if trainer.sanity_checking:
            return
        metrics = {k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}
        if trainer.is_global_zero:
            os.makedirs(self.folder, exist_ok=True)
            time.sleep(self.render_seconds)
            with open(os.path.join(self.folder, f"epoch{trainer.current_epoch}.json"), "w") as f:
                json.dump(metrics, f)
            print(f"epoch {trainer.current_epoch} {metrics}", flush=True)
        trainer.strategy.barrier("report")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--render-seconds", type=float, default=1.5)
    ap.add_argument("--seed", type=int, default=45)
    args = ap.parse_args()
    rank = int(os.environ.get("RANK", 0))
    L.seed_everything(args.seed, verbose=False)
    model = IonNet()
    torch.manual_seed(args.seed * 1000 + rank)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp", max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate, gradient_clip_val=1.0, logger=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, default_root_dir="runs/myrtle",
        callbacks=[Report("runs/myrtle/report", args.render_seconds), EarlyStopping("val_loss", patience=3),
                   ModelCheckpoint("runs/myrtle", monitor="val_acc", mode="max", save_top_k=1)])
    trainer.fit(model, datamodule=Ions(args.batch))
    if trainer.is_global_zero:
        print(f"done at step {trainer.global_step} best {trainer.checkpoint_callback.best_model_score.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
