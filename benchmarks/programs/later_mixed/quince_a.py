"""Multi-task regression with Lightning: every sample belongs to one of several sensors."""
import argparse
import logging

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

SENSORS = ("north", "south", "roof", "cellar")


class SensorData(Dataset):
    """Readings of four sensors; the cellar one reports seldom."""

    def __init__(self, n=384, dim=12, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, dim, generator=g)
        self.kind = torch.randint(0, 3, (n,), generator=g)
        self.kind[torch.rand(n, generator=g) < 0.06] = 3
        w = torch.randn(4, dim, generator=g)
        self.y = (self.x * w[self.kind]).sum(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.kind[i], self.y[i]


class SensorNet(L.LightningModule):
    def __init__(self, dim=12, hidden=32, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.trunk = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.out = nn.Linear(hidden, len(SENSORS))

    def forward(self, x, kind):
        return self.out(self.trunk(x)).gather(1, kind[:, None]).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, kind, y = batch
        err = (self(x, kind) - y) ** 2
        loss = err.mean()
        self.log("train/loss", loss, on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, kind, y = batch
        err = (self(x, kind) - y) ** 2
        per_sensor = {}
        for i, name in enumerate(SENSORS):
            mask = kind == i
            if mask.any():
                per_sensor[f"val/{name}"] = err[mask].mean()
        self.log_dict(per_sensor, sync_dist=True, on_step=False, on_epoch=True, batch_size=len(x))
        self.log("val/loss", err.mean(), sync_dist=True, batch_size=len(x))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--devices", type=int, default=2)
    args = ap.parse_args()

    L.seed_everything(7, verbose=False)
    train = DataLoader(SensorData(), batch_size=args.batch_size, shuffle=True)
    held = SensorData(n=24, seed=6)
    val = DataLoader(held, batch_size=args.batch_size)
    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp", max_epochs=args.epochs,
        num_sanity_val_steps=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(SensorNet(), train, val)
    if trainer.is_global_zero:
        print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
