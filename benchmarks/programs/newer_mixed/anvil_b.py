"""Small classifier trained with Lightning on four synthetic clusters."""
import argparse
import logging
import warnings

import lightning as L
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Clusters(L.LightningDataModule):
    def __init__(self, batch_size=16, n=512):
        super().__init__()
        self.batch_size, self.n = batch_size, n

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(3)
        centers = torch.randn(4, 10, generator=g) * 1.5
        y = torch.randint(0, 4, (self.n,), generator=g)
        self.data = TensorDataset(centers[y] + torch.randn(self.n, 10, generator=g), y)

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True, drop_last=True)


class Net(L.LightningModule):
    def __init__(self, max_lr=0.2, width=48):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 4)
        self.history = []

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.history.append(self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.hparams.max_lr, momentum=0.9, weight_decay=1e-4)
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt,
            max_lr=self.hparams.max_lr,
            total_steps=self.trainer.estimated_stepping_batches,
            pct_start=0.3,
        )
        return [opt], [{"scheduler": sched, "interval": "step"}]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--max-lr", type=float, default=0.2)
    p.add_argument("--devices", type=int, default=2)
    args = p.parse_args()
    L.seed_everything(7, verbose=False)
    model = Net(args.max_lr)
    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp", max_epochs=args.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=4,
    )
    trainer.fit(model, datamodule=Clusters())
    if trainer.is_global_zero:
        print(f"steps {trainer.global_step} loss {trainer.callback_metrics['train_loss']:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
