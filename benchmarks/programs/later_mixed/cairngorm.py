"""Sanity run with Lightning: can the network learn two fixed batches by heart?"""
import argparse
import logging

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Memoriser(L.LightningModule):
    """Dropout and weight decay are off on purpose."""

    def __init__(self, dim=32, classes=10, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                                 nn.Linear(128, classes))

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        loss = F.cross_entropy(out, y)
        acc = (out.argmax(1) == y).float().mean()
        self.log_dict({"loss": loss, "acc": acc}, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class UntilLearned(Callback):
    """Stops when the training accuracy (the same value on all ranks) has reached the goal."""

    def __init__(self, goal):
        self.goal = goal

    def on_train_epoch_end(self, trainer, module):
        acc = float(trainer.callback_metrics["acc"])
        if trainer.is_global_zero and trainer.current_epoch % 5 == 0:
            loss = float(trainer.callback_metrics["loss"])
            print(f"epoch {trainer.current_epoch} loss {loss:.4f} acc {acc:.3f}", flush=True)
        if acc >= self.goal and trainer.current_epoch >= 14:
            trainer.should_stop = True


def random_labels(n, dim, classes):
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, dim, generator=g), torch.randint(0, classes, (n,), generator=g))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batches", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--goal", type=float, default=1.0)
    args = ap.parse_args()
    L.seed_everything(1, verbose=False)
    loader = DataLoader(random_labels(4096, 32, 10), batch_size=args.batch_size, shuffle=False)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=args.epochs, overfit_batches=args.batches,
        callbacks=[UntilLearned(args.goal)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Memoriser(), loader)
    if trainer.is_global_zero:
        print(f"stopped after epoch {trainer.current_epoch}, acc {float(trainer.callback_metrics['acc']):.3f}")


if __name__ == "__main__":
    main()
