import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Shapes(Dataset):
    """Rendered bars and crosses; jitter and flips are drawn by the process that loads the item."""

    def __init__(self, n, seed, augment, generator=None):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.arange(n) % 4
        self.x = 0.3 * torch.randn(n, 1, 20, 20, generator=g)
        for i, c in enumerate(self.y.tolist()):
            r = int(torch.randint(6, 14, (1,), generator=g))
            if c in (0, 2):
                self.x[i, 0, r - 1:r + 1, 3:17] += 1
            if c in (1, 2):
                self.x[i, 0, 3:17, r - 1:r + 1] += 1
            if c == 3:
                self.x[i, 0] += torch.eye(20)
        self.augment = augment
        self.generator = generator

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.augment:
            dx, dy = torch.randint(-2, 3, (2,), generator=self.generator).tolist()
            x = torch.roll(x, (dx, dy), dims=(1, 2))
            if torch.rand((), generator=self.generator) < 0.5:
                x = x.flip(1, 2)
            x = x + 0.05 * torch.randn(x.shape, generator=self.generator)
        return x, self.y[i]


class ShapeData(L.LightningDataModule):
    def setup(self, stage=None):
        own = torch.Generator().manual_seed(9000 + self.trainer.global_rank)
        self.train = Shapes(960, seed=1, augment=True, generator=own)
        self.val = Shapes(240, seed=2, augment=False)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=20, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=60)


class ShapeNet(L.LightningModule):
    def __init__(self, lr=4e-3, restart=16):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
            nn.Flatten(), nn.Linear(216, 4),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log_dict(
            {"val_loss": F.cross_entropy(logits, y), "val_acc": (logits.argmax(1) == y).float().mean()},
            sync_dist=True,
        )

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=self.hparams.restart)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Lines(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero:
            m = trainer.callback_metrics
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            print(f"epoch {trainer.current_epoch} loss {m['train_loss']:.4f} val {m['val_loss']:.4f} "
                  f"acc {m['val_acc']:.3f} lr {lr:.5f}", flush=True)


if __name__ == "__main__":
    L.seed_everything(77)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, accumulate_grad_batches=2,
        gradient_clip_val=1.0, num_sanity_val_steps=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Lines()],
    )
    trainer.fit(ShapeNet(), datamodule=ShapeData())
