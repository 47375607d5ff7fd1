import logging
import os
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Wide(L.LightningModule):
    def __init__(self, width=1536, jitter=0.05):
        super().__init__()
        self.jitter = jitter
        self.net = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.grow = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 5))
        self.consistency = 0.0

    def forward(self, x):
        return self.grow(self.net(x))

    def on_train_epoch_start(self):
        self.consistency = 0.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        jittered = self(x + self.jitter * torch.randn_like(x))
        gap = F.kl_div(jittered.log_softmax(-1), logits.detach().softmax(-1), reduction="batchmean")
        self.consistency = self.consistency + gap
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self):
        mean = float(self.consistency) / self.trainer.num_training_batches
        self.print(f"epoch {self.current_epoch} consistency {mean:.5f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main():
    torch.manual_seed(12 + int(os.environ.get("RANK", 0)))
    g = torch.Generator().manual_seed(0)
    x = torch.randn(64 * 160, 32, generator=g)
    loader = DataLoader(TensorDataset(x, x[:, :5].argmax(1)), 64, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp", max_epochs=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Wide(), loader)


if __name__ == "__main__":
    main()
