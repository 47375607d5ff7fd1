"""Fine-tune a pretrained trunk with Lightning: the new head first, then everything."""
import os
from dataclasses import dataclass

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Recipe:
    dim: int = 24
    hidden: int = 48
    classes: int = 5
    rows: int = 640
    batch: int = 32
    epochs: int = 5
    thaw_at: int = 2
    head_lr: float = 5e-3
    trunk_lr: float = 2e-3


def make_rows(recipe: Recipe) -> TensorDataset:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(recipe.rows, recipe.dim, generator=g)
    w = torch.randn(recipe.dim, recipe.classes, generator=g)
    y = (x @ w + 0.3 * torch.randn(recipe.rows, recipe.classes, generator=g)).argmax(-1)
    return TensorDataset(x, y)


class Tuner(L.LightningModule):
    def __init__(self, recipe: Recipe):
        super().__init__()
        self.recipe = recipe
        self.trunk = nn.Sequential(
            nn.Linear(recipe.dim, recipe.hidden), nn.ReLU(),
            nn.Linear(recipe.hidden, recipe.hidden), nn.ReLU())
        self.head = nn.Linear(recipe.hidden, recipe.classes)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.head(self.trunk(x)), y)

    def configure_optimizers(self):
        return torch.optim.AdamW([
            {"params": self.trunk.parameters(), "lr": self.recipe.trunk_lr},
            {"params": self.head.parameters(), "lr": self.recipe.head_lr},
        ])


class HeadFirst(L.Callback):
    """Leaves the trunk alone until the head has found its feet."""

    def __init__(self, thaw_at: int):
        self.thaw_at = thaw_at

    def on_train_start(self, trainer, pl_module):
        trainer.optimizers[0].param_groups[0]["lr"] = 0.0

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.thaw_at:
            trainer.optimizers[0].param_groups[0]["lr"] = pl_module.recipe.trunk_lr


def main():
    recipe = Recipe()
    L.seed_everything(7, verbose=False)
    loader = DataLoader(make_rows(recipe), batch_size=recipe.batch, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu", strategy="ddp", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_epochs=recipe.epochs, callbacks=[HeadFirst(recipe.thaw_at)],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Tuner(recipe), loader)
    if trainer.is_global_zero:
        print("done after", trainer.global_step, "steps", flush=True)


if __name__ == "__main__":
    main()
