import argparse
import logging
import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

from callbacks import ClassBalance, History
from data import BlobModule

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Classifier(L.LightningModule):
    def __init__(self, dim=16, classes=5, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, classes))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        acc = (logits.argmax(-1) == y).float().mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("train_acc", acc, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--devices", type=int, default=2)
    args = ap.parse_args()

    L.seed_everything(7, verbose=False)
    out = tempfile.mkdtemp(prefix="history_")
    trainer = L.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[History(out), ClassBalance(5)],
    )
    model = Classifier()
    trainer.fit(model, datamodule=BlobModule())
    if trainer.is_global_zero:
        print("finished", {k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}, flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
