"""Binary classification on tables with Lightning and an own batch iterator."""
import argparse
import os
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torchmetrics.classification import BinaryAccuracy

from batches import TableBatches, tables

warnings.filterwarnings("ignore")


class Tables(L.LightningDataModule):
    def __init__(self, batch_size, seed):
        super().__init__()
        self.batch_size, self.seed = batch_size, seed

    def setup(self, stage=None):
        self.train, self.valid = tables(1024, 1), tables(512, 2)

    def _make(self, data, batch, shuffle):
        return TableBatches(*data, batch, self.trainer.global_rank, self.trainer.world_size,
                            shuffle, self.seed)

    def train_dataloader(self):
        return self._make(self.train, self.batch_size, True)

    def val_dataloader(self):
        return self._make(self.valid, 64, False)


class Net(L.LightningModule):
    def __init__(self, features=16, width=64, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Dropout(0.05),
                                 nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.accuracy = BinaryAccuracy()

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True,
                 batch_size=len(y))
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.accuracy.update(logits.sigmoid(), y.int())
        self.log("val_loss", F.binary_cross_entropy_with_logits(logits, y), sync_dist=True,
                 on_epoch=True, batch_size=len(y))
        self.log("val_acc", self.accuracy, on_epoch=True, batch_size=len(y))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss",
                                                   "interval": "epoch"}}


class Report(Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero:
            m = trainer.callback_metrics
            print(f"epoch {trainer.current_epoch} train {m['train_loss']:.4f} "
                  f"val {m['val_loss']:.4f} acc {m['val_acc']:.4f} "
                  f"lr {trainer.optimizers[0].param_groups[0]['lr']:.1e}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--seed", type=int, default=19)
    a = p.parse_args()
    world = int(os.environ.get("WORLD_SIZE", 1))
    L.seed_everything(a.seed + int(os.environ.get("RANK", 0)), verbose=False)
    out = os.path.join(tempfile.gettempdir(), "tables_run")
    checkpoint = ModelCheckpoint(dirpath=out, monitor="val_loss", filename="best",
                                 enable_version_counter=False)
    trainer = L.Trainer(
        accelerator="cpu", devices=world, strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=a.epochs, gradient_clip_val=1.0, logger=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=out,
        callbacks=[EarlyStopping("val_loss", patience=2, min_delta=0.002), checkpoint, Report()])
    model = Net()
    trainer.fit(model, datamodule=Tables(a.batch_size, a.seed))
    if trainer.is_global_zero:
        print(f"epochs {trainer.current_epoch} best {checkpoint.best_model_score:.4f}", flush=True)


if __name__ == "__main__":
    main()
