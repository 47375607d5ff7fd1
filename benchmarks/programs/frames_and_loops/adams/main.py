import argparse
import logging
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

SOURCES = ["news", "forum", "legal", "speech"]


class MixedCorpus(Dataset):
    """Bag-of-feature documents from several sources."""

    def __init__(self, counts: dict[str, int], dim: int, classes: int, seed: int):
        g = torch.Generator().manual_seed(1234)
        self.centre = torch.randn(classes, dim, generator=g)
        self.bias = {s: 0.5 * torch.randn(dim, generator=g) for s in SOURCES}
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for source, n in counts.items():
            for _ in range(n):
                c = int(torch.randint(0, classes, (), generator=g))
                x = self.centre[c] + self.bias[source] + torch.randn(dim, generator=g)
                self.rows.append((x, c, SOURCES.index(source)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Corpora(pl.LightningDataModule):
    def __init__(self, args):
        super().__init__()
        self.args = args

    def setup(self, stage=None):
        a = self.args
        self.train_set = MixedCorpus({"news": 240, "forum": 160, "legal": 60, "speech": 20}, a.dim, a.classes, 1)
        self.val_set = MixedCorpus({"news": 60, "forum": 40, "legal": 20, "speech": 1}, a.dim, a.classes, 2)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.args.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.args.batch)


class SourceScores(nn.Module):
    """Accuracy and F1 for every source that turns up in the evaluation data."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes
        self.acc = nn.ModuleDict({s: MulticlassAccuracy(classes, average="micro") for s in SOURCES})
        self.f1 = nn.ModuleDict({s: MulticlassF1Score(classes, average="macro") for s in SOURCES})

    def update(self, logits, y, src):
        for s in src.unique().tolist():
            name = SOURCES[s]
            keep = src == s
            self.acc[name].update(logits[keep], y[keep])
            self.f1[name].update(logits[keep], y[keep])

    def compute(self):
        out = {}
        for name in sorted(self.acc):
            out[f"acc/{name}"] = self.acc[name].compute()
            out[f"f1/{name}"] = self.f1[name].compute()
        return out

    def reset(self):
        for m in list(self.acc.values()) + list(self.f1.values()):
            m.reset()


class DocClassifier(pl.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.body = nn.Sequential(nn.Linear(args.dim, 64), nn.LayerNorm(64), nn.ReLU(), nn.Dropout(0.1))
        self.out = nn.Linear(64, args.classes)
        self.scores = SourceScores(args.classes)

    def forward(self, x):
        return self.out(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y, src = batch
        logits = self(x)
        self.scores.update(logits, y, src)
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)

    def on_validation_epoch_end(self):
        result = self.scores.compute()
        self.scores.reset()
        if self.trainer.is_global_zero:
            shown = " ".join(f"{k} {v:.3f}" for k, v in result.items())
            print(f"epoch {self.current_epoch} step {self.global_step} {shown}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.args.lr)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--classes", type=int, default=5)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--devices", type=int, default=2)
    args = p.parse_args()
    pl.seed_everything(3, verbose=False)
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=args.devices, strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=args.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(DocClassifier(args), datamodule=Corpora(args))
    if trainer.is_global_zero:
        print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4), flush=True)


if __name__ == "__main__":
    main()
