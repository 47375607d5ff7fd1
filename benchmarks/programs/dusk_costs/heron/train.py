"""Next-step surrogate for a synthetic advection problem (scalar + velocity)."""
import argparse
import logging
import math
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, Dataset

from model import FlowUNet, smse

log = logging.getLogger("surrogate")


class Advection(Dataset):
    """Travelling-wave fields; history of two frames and the frame to predict."""

    def __init__(self, n, size, seed):
        self.n, self.size, self.seed = n, size, seed
        ax = torch.arange(size) * (2 * math.pi / size)
        self.yy, self.xx = torch.meshgrid(ax, ax, indexing="ij")

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        k = torch.randint(1, 4, (3, 2), generator=g)
        ph = torch.rand(3, generator=g) * 6.28
        w = torch.rand(3, generator=g) * 0.5 + 0.1
        frames = [torch.stack([torch.sin(k[c, 0] * self.xx + k[c, 1] * self.yy + ph[c] - w[c] * t)
                               for c in range(3)]) for t in range(3)]
        return torch.stack(frames[:2]), frames[2]


class PDEModel(L.LightningModule):
    def __init__(self, lr, width):
        super().__init__()
        self.save_hyperparameters()
        self.net = FlowUNet(width=width)
        self.step_outputs = []

    def training_step(self, batch, batch_idx):
        history, target = batch
        pred = self.net(history)
        loss = smse(pred, target)
        scalar_loss = smse(pred[:, :1], target[:, :1])
        vector_loss = smse(pred[:, 1:], target[:, 1:])
        self.log("loss", loss, prog_bar=True)
        self.step_outputs.append({"scalar": scalar_loss, "vector": vector_loss})
        return loss

    def on_train_epoch_end(self):
        for key in ("scalar", "vector"):
            mean = torch.stack([o[key] for o in self.step_outputs]).mean()
            self.log(f"epoch/{key}_loss", mean, sync_dist=True)
        self.step_outputs.clear()

    def validation_step(self, batch, batch_idx):
        history, target = batch
        self.log("val_loss", smse(self.net(history), target), sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)}


class Report(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            m = trainer.callback_metrics
            log.info("epoch %d loss %.4f", trainer.current_epoch, float(m["loss"]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=1920)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--width", type=int, default=12)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    L.seed_everything(11)

    out = args.out or tempfile.mkdtemp()
    train = DataLoader(Advection(args.samples, args.size, 1), args.batch_size, shuffle=True)
    val = DataLoader(Advection(64, args.size, 2), args.batch_size)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=args.epochs,
                        logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, num_sanity_val_steps=0,
                        callbacks=[Report()], default_root_dir=out)
    trainer.fit(PDEModel(args.lr, args.width), train, val)


if __name__ == "__main__":
    main()
