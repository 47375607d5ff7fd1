import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.backbone = nn.Sequential(nn.Linear(28, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
        self.head = nn.Linear(48, 6)

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(x))
        return loss

    def on_train_epoch_end(self):
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch} done", flush=True)

    def configure_optimizers(self):
        groups = [{"params": self.head.parameters()}, {"params": self.backbone.parameters(), "lr": 0.0, "name": "backbone"}]
        return torch.optim.SGD(groups, lr=self.lr)


class LateBackbone(L.Callback):
    def __init__(self, epoch, ratio):
        self.epoch = epoch
        self.ratio = ratio

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == self.epoch:
            for group in trainer.optimizers[0].param_groups:
                if group.get("name") == "backbone":
                    group["lr"] = module.lr * self.ratio


def dataset():
    g = torch.Generator().manual_seed(50)
    x = torch.randn(512, 28, generator=g)
    return TensorDataset(x, x[:, :6].argmax(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--thaw-at", type=int, default=2)
    args = p.parse_args()
    L.seed_everything(7)
    finetune = LateBackbone(args.thaw_at, 0.5)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=args.epochs,
        callbacks=[finetune],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(dataset(), batch_size=16, shuffle=True)
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
