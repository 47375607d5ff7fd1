"""Fine-tuning of a (small) pretrained trunk: head first, trunk after a few epochs.

    torchrun --nproc_per_node 2 train.py --devices 2
"""
import argparse
import os
import tempfile

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import BaseFinetuning, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class HeadFirst(BaseFinetuning):
    """Train the classifier alone until `unfreeze_at`, then everything with a smaller rate for the trunk."""

    def __init__(self, unfreeze_at, trunk_lr_ratio=0.2):
        super().__init__()
        self.unfreeze_at = unfreeze_at
        self.trunk_lr_ratio = trunk_lr_ratio

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.trunk)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == self.unfreeze_at:
            lr = optimizer.param_groups[0]["lr"] * self.trunk_lr_ratio
            self.unfreeze_and_add_param_group(pl_module.trunk, optimizer, lr=lr, initial_denom_lr=1.0)


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, 2, 1, bias=False), nn.GroupNorm(8, cout), nn.ReLU())


class Classifier(pl.LightningModule):
    def __init__(self, classes=12, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.trunk = nn.Sequential(conv_block(3, 32), conv_block(32, 64), conv_block(64, 96),
                                   nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, classes))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.head(self.trunk(x)), y)
        self.log("train_loss", loss, prog_bar=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.head(self.trunk(x))
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(filter(lambda p: p.requires_grad, self.parameters()), lr=self.hparams.lr)


class Shapes(pl.LightningDataModule):
    def __init__(self, batch_size, classes=12, n_train=1024, n_val=256):
        super().__init__()
        self.batch_size, self.classes, self.n_train, self.n_val = batch_size, classes, n_train, n_val

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(5)
        protos = torch.randn(self.classes, 3, 6, 6, generator=g)

        def split(n):
            y = torch.randint(0, self.classes, (n,), generator=g)
            x = F.interpolate(protos[y], size=48, mode="bilinear", align_corners=False)
            return TensorDataset(x + 1.5 * torch.randn(n, 3, 48, 48, generator=g), y)

        self.train_set, self.val_set = split(self.n_train), split(self.n_val)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=int(os.environ.get("LOCAL_WORLD_SIZE", 2)))
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--unfreeze-at", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", default=None)
    args = parser.parse_args()

    pl.seed_everything(args.seed)
    out = args.out or tempfile.mkdtemp()
    trainer = pl.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp", max_epochs=args.epochs,
        callbacks=[HeadFirst(args.unfreeze_at), ModelCheckpoint(out, monitor="val_loss")],
        gradient_clip_val=1.0, logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0)
    model, data = Classifier(), Shapes(args.batch_size)
    trainer.fit(model, data)
    if trainer.is_global_zero:
        print({k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
