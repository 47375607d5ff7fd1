import argparse
import shutil
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OUT = Path.cwd() / "out_litfit"


class Forecaster(L.LightningModule):
    def __init__(self, lr=3e-3, total=80):
        super().__init__()
        self.save_hyperparameters()
        self.rnn = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.mse_loss(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", F.mse_loss(self(x), y), sync_dist=True, batch_size=len(x))

    def on_validation_epoch_end(self):
        if self.global_rank == 0 and not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} step {self.global_step}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.hparams.total)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def series(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(21) * 0.3
    phase = torch.rand(n, 1, generator=g) * 6.28
    w = torch.sin(t + phase)
    return TensorDataset(w[:, :20, None], w[:, 20:])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    L.seed_everything(21)
    import os

    if not args.resume and int(os.environ.get("RANK", 0)) == 0:
        shutil.rmtree(OUT, ignore_errors=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=args.epochs * 2 if args.resume else args.epochs,
        accumulate_grad_batches=4,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(dirpath=OUT, save_last=True, save_top_k=1, monitor="val")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    train = DataLoader(series(640, 1), batch_size=8, shuffle=True, drop_last=True)
    val = DataLoader(series(128, 2), batch_size=16)
    trainer.fit(Forecaster(), train, val, ckpt_path=str(OUT / "last.ckpt") if args.resume else None)


if __name__ == "__main__":
    main()
