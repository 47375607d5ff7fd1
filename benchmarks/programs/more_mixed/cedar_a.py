"""Lightning regression with an extra probe metric on a held-out slice."""
import argparse
import logging
import os
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 10, generator=g) * 2 - 1
    y = (3 * x[:, :1]).sin() + x[:, 1:2] * x[:, 2:3]
    return TensorDataset(x, y)


class Probe:
    """A fixed slice that is scored with the current weights."""

    def __init__(self, n=64):
        self.x, self.y = make_set(n, 404).tensors

    @torch.no_grad()
    def score(self, module):
        return F.mse_loss(module(self.x), self.y)


class Regressor(L.LightningModule):
    def __init__(self, hidden=48, lr=3e-3, log_every=1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(10, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 1))
        self.probe = Probe()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train/mse", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/mse", F.mse_loss(self(x), y), on_epoch=True, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.sanity_checking:
            return
        if self.trainer.is_global_zero:
            value = self.probe.score(self)
            self.log("probe/mse", value, sync_dist=False, rank_zero_only=True)

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            m = self.trainer.callback_metrics
            print(f"epoch {self.current_epoch} step {self.global_step}", {k: round(float(v), 4) for k, v in m.items()}, flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [opt], [torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--bs", type=int, default=32)
    args = ap.parse_args()
    L.seed_everything(10, verbose=False)
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
    train = DataLoader(make_set(512, 1), args.bs, shuffle=True)
    val = DataLoader(make_set(128, 2), args.bs)
    trainer.fit(Regressor(), train, val)


if __name__ == "__main__":
    main()
