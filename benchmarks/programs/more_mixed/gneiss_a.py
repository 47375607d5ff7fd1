"""Lightning module that collects validation outputs for an epoch-level score."""
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
CONFIG = {"size": 96, "channels": 3, "hidden": 6, "classes": 5, "lr": 1e-3}


def images(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CONFIG["classes"], (n,), generator=g)
    x = torch.randn(n, CONFIG["channels"], CONFIG["size"], CONFIG["size"], generator=g)
    x += y.view(-1, 1, 1, 1) * 0.1
    return TensorDataset(x, y)


class Scorer(L.LightningModule):
    def __init__(self, hidden, classes, lr):
        super().__init__()
        self.save_hyperparameters()
        self.conv = nn.Conv2d(CONFIG["channels"], hidden, 12, stride=12)
        self.head = nn.Linear(hidden, classes)
        self.validation_step_outputs = []

    def forward(self, x):
        return self.head(F.relu(self.conv(x)).mean((2, 3)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.validation_step_outputs.append({"image": x, "logits": logits, "label": y})

    def on_validation_epoch_end(self):
        outputs = self.validation_step_outputs
        logits = torch.cat([o["logits"] for o in outputs])
        labels = torch.cat([o["label"] for o in outputs])
        margin = logits.softmax(-1).gather(1, labels[:, None]).squeeze(1)
        worst = torch.cat([o["image"] for o in outputs])[margin.argsort()[:4]]
        acc = (logits.argmax(-1) == labels).float().mean()
        self.log("val/acc", acc, sync_dist=True)
        self.log("val/worst_mean", worst.mean(), sync_dist=True)
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} acc {acc:.3f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    args = ap.parse_args()
    L.seed_everything(1, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=args.epochs,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Scorer(CONFIG["hidden"], CONFIG["classes"], CONFIG["lr"])
    trainer.fit(model, DataLoader(images(192, 1), 16, shuffle=True), DataLoader(images(512, 2), 32))


if __name__ == "__main__":
    main()
