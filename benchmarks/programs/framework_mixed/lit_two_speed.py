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


class SlowFast(L.LightningModule):
    """The trunk is updated with every second batch from the sum of both, the head with every batch."""

    def __init__(self, every=2):
        super().__init__()
        self.automatic_optimization = False
        self.every = every
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def training_step(self, batch, batch_idx):
        trunk_opt, head_opt = self.optimizers()
        x, y = batch
        loss = F.cross_entropy(self.head(self.trunk(x)), y)
        self.manual_backward(loss)
        head_opt.step()
        head_opt.zero_grad()
        if (batch_idx + 1) % self.every == 0:
            for p in self.trunk.parameters():
                p.grad.div_(self.every)
            trunk_opt.step()
            trunk_opt.zero_grad()
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)

    def on_train_epoch_end(self):
        for s in self.lr_schedulers():
            s.step()
        self.print(self.current_epoch, f"{self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self):
        a = torch.optim.AdamW(self.trunk.parameters(), lr=2e-3)
        b = torch.optim.SGD(self.head.parameters(), lr=5e-2)
        sched = lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)
        return [a, b], [sched(a), sched(b)]


def main():
    L.seed_everything(2, verbose=False)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(768, 20, generator=g)
    ds = TensorDataset(x, x[:, :4].argmax(1))
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp", max_epochs=4,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(SlowFast(), DataLoader(ds, 16, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
