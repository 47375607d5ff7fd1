import argparse
import logging
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy


class Rings(pl.LightningDataModule):
    """Points on noisy rings embedded in a higher dimension."""

    def __init__(self, args):
        super().__init__()
        self.args = args

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(55)
        n, d = self.args.samples, self.args.dim
        basis = torch.linalg.qr(torch.randn(d, d, generator=g)).Q[:2]
        angle = torch.rand(n, generator=g) * 6.2832
        radius = 1.0 + torch.randint(0, 2, (n,), generator=g) + 0.05 * torch.randn(n, generator=g)
        flat = torch.stack([angle.cos(), angle.sin()], 1) * radius[:, None]
        x = flat @ basis + 0.05 * torch.randn(n, d, generator=g)
        self.train_set, self.val_set = TensorDataset(x[: -200]), TensorDataset(x[-200:])

    def train_dataloader(self):
        return DataLoader(self.train_set, self.args.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, 50)


def mlp(i, o, width, act):
    return nn.Sequential(nn.Linear(i, width), act, nn.Linear(width, width), act, nn.Linear(width, o))


class AdversarialAutoencoder(pl.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.automatic_optimization = False
        self.args = args
        self.enc = mlp(args.dim, args.latent, args.width, nn.GELU())
        self.dec = mlp(args.latent, args.dim, args.width, nn.GELU())
        self.critic = mlp(args.latent, 1, args.width, nn.LeakyReLU(0.2))

    def configure_optimizers(self):
        ae = torch.optim.Adam(list(self.enc.parameters()) + list(self.dec.parameters()), lr=self.args.lr)
        cr = torch.optim.Adam(self.critic.parameters(), lr=0.5 * self.args.lr, betas=(0.5, 0.99))
        return [ae, cr], [torch.optim.lr_scheduler.ExponentialLR(ae, 0.9),
                          torch.optim.lr_scheduler.ExponentialLR(cr, 0.9)]

    def on_fit_start(self):
        self.rng = torch.Generator().manual_seed(4100 + self.global_rank)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        ae, cr = self.optimizers()

        z = self.enc(x)
        rec = F.mse_loss(self.dec(z), x)
        fool = F.softplus(-self.critic(z)).mean()
        ae.zero_grad()
        self.manual_backward(rec + self.args.adv * fool)
        ae.step()

        prior = torch.randn(len(x), self.args.latent, generator=self.rng)
        with torch.no_grad():
            fake = self.enc(x)
        gap = F.softplus(-self.critic(prior)).mean() + F.softplus(self.critic(fake)).mean()
        cr.zero_grad()
        gap.backward()
        cr.step()

        self.log_dict({"rec": rec.detach(), "critic": gap.detach()}, on_step=False, on_epoch=True, sync_dist=True)

    def on_train_epoch_end(self):
        for sch in self.lr_schedulers():
            sch.step()
        m = self.trainer.callback_metrics
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} rec {m['rec']:.4f} critic {m['critic']:.4f}", flush=True)

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_rec", F.mse_loss(self.dec(self.enc(x)), x), sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print(f"val {float(self.trainer.callback_metrics.get('val_rec', float('nan'))):.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=840)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--latent", type=int, default=3)
    p.add_argument("--width", type=int, default=48)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--adv", type=float, default=0.05)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--devices", type=int, default=2)
    args = p.parse_args()
    pl.seed_everything(12, verbose=False)
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=args.devices,
        strategy=DDPStrategy(process_group_backend="gloo", find_unused_parameters=True),
        max_epochs=args.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(AdversarialAutoencoder(args), datamodule=Rings(args))


if __name__ == "__main__":
    main()
