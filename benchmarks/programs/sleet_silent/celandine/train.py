import argparse
import logging
import os
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

from datamodule import GlyphData

warnings.filterwarnings("ignore", ".*does not have many workers.*")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class GlyphNet(L.LightningModule):
    def __init__(self, width=24, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.mid = nn.Sequential(nn.GELU(), nn.Conv2d(width, width, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, stride=2, padding=1), nn.GELU())
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(width * 16, 10)

    def forward(self, x):
        return self.fc(self.drop(self.mid(self.stem(x)).flatten(1)))

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        acc = (self(x).argmax(-1) == y).float().mean()
        self.log("val_acc", acc, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} val_acc {self.trainer.callback_metrics['val_acc']:.4f}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=self.trainer.max_epochs)
        return {"optimizer": opt, "lr_scheduler": sched}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--devices", type=int, default=int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    p.add_argument("--seed", type=int, default=2024)
    args = p.parse_args()
    torch.set_num_threads(1)
    # different augmentation noise on every process
    L.seed_everything(args.seed + int(os.environ.get("RANK", 0)), verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(GlyphNet(), datamodule=GlyphData())


if __name__ == "__main__":
    main()
