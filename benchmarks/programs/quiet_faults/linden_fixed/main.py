import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Curves(Dataset):
    def __init__(self, n, seed, noise=0.5):
        g = torch.Generator().manual_seed(seed)
        coef = torch.randn(n, 4, generator=g)
        t = torch.linspace(-1, 1, 32)
        basis = torch.stack([torch.ones(32), t, t ** 2, torch.sin(4 * t)])
        self.x = coef @ basis + noise * torch.randn(n, 32, generator=g)
        self.y = torch.stack([coef[:, 1], coef[:, 3]], dim=1) + 0.3 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class CurveData(L.LightningDataModule):
    def __init__(self, batch_size=24, train=768, val=96):
        super().__init__()
        self.batch_size, self.n_train, self.n_val = batch_size, train, val

    def setup(self, stage=None):
        self.train = Curves(self.n_train, seed=1)
        self.val = Curves(self.n_val, seed=2)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=24)


class CurveFit(L.LightningModule):
    def __init__(self, lr=8e-3, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(32, width), nn.LayerNorm(width), nn.SiLU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, 2),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.smooth_l1_loss(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        pred = self(x)
        self.log("val_loss", F.smooth_l1_loss(pred, y), on_epoch=True, prog_bar=True, sync_dist=True)
        self.log("val_mae", (pred - y).abs().mean(), on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="min", factor=0.4, patience=1, threshold=5e-3
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss", "interval": "epoch"},
        }


class Report(L.Callback):
    def on_validation_epoch_end(self, trainer, module):
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        m = trainer.callback_metrics
        print(f"epoch {trainer.current_epoch} val_mae {m['val_mae']:.4f}", flush=True)

    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero:
            m = trainer.callback_metrics
            print(f"epoch {trainer.current_epoch} train_loss {m['train_loss']:.4f} "
                  f"lr {trainer.optimizers[0].param_groups[0]['lr']:.5f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max_epochs", type=int, default=10)
    ap.add_argument("--devices", type=int, default=2)
    args = ap.parse_args()
    L.seed_everything(3, workers=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=args.max_epochs,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Report()],
    )
    trainer.fit(CurveFit(), datamodule=CurveData())


if __name__ == "__main__":
    main()
