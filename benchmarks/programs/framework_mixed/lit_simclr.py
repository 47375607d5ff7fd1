import logging
import os
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class TwoViews(Dataset):
    def __init__(self, n=384):
        g = torch.Generator().manual_seed(0)
        self.base = torch.randn(n, 32, generator=g)

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        x = self.base[i]
        return x + 0.3 * torch.randn(32), x + 0.3 * torch.randn(32)


class SimCLR(pl.LightningModule):
    def __init__(self, temperature=0.2, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64))
        self.projector = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=-1)

    def nt_xent(self, a, b):
        n = a.shape[0]
        both = torch.cat([a, b])
        everyone = self.all_gather(both, sync_grads=True).flatten(0, 1)
        sim = both @ everyone.T / self.hparams.temperature
        offset = self.global_rank * 2 * n
        idx = torch.arange(2 * n)
        sim[idx, offset + idx] = float("-inf")
        target = offset + (idx + n) % (2 * n)
        return F.cross_entropy(sim, target)

    def training_step(self, batch, _):
        v1, v2 = batch
        loss = self.nt_xent(self(v1), self(v2))
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        self.print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), self.hparams.lr)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    torch.manual_seed(31 + int(os.environ.get("RANK", 0)))
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp", max_epochs=3,
        gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SimCLR(), DataLoader(TwoViews(), 32, shuffle=True, drop_last=True))
