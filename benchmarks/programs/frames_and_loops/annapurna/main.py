import argparse
import logging
import warnings
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy


class Mixture(pl.LightningDataModule):
    def __init__(self, args):
        super().__init__()
        self.args = args

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(101)
        centre = 2.0 * torch.randn(8, self.args.dim, generator=g)
        pick = torch.randint(0, 8, (self.args.samples + 160,), generator=g)
        x = centre[pick] + 0.3 * torch.randn(len(pick), self.args.dim, generator=g)
        self.train_set, self.val_set = TensorDataset(x[160:]), TensorDataset(x[:160])

    def train_dataloader(self):
        return DataLoader(self.train_set, self.args.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.args.batch)


class Players(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(a.latent, a.width), nn.ReLU(), nn.Linear(a.width, a.dim))
        self.disc = nn.Sequential(nn.Linear(a.dim, a.width), nn.LeakyReLU(0.2), nn.Linear(a.width, 1))


class AccumulatingGAN(pl.LightningModule):
    """Two optimizers, each stepped every `accum` batches; the generator pauses while the critic warms up."""

    def __init__(self, args):
        super().__init__()
        self.automatic_optimization = False
        self.args = args
        self.players = Players(args)
        self.ema = {k: v.clone() for k, v in self.players.gen.state_dict().items()}
        self.updates = 0

    def configure_optimizers(self):
        g = torch.optim.Adam(self.players.gen.parameters(), lr=self.args.lr, betas=(0.5, 0.99))
        d = torch.optim.Adam(self.players.disc.parameters(), lr=self.args.lr, betas=(0.5, 0.99))
        return g, d

    def on_fit_start(self):
        self.rng = torch.Generator().manual_seed(5000 + self.global_rank)

    def on_train_epoch_start(self):
        g, d = self.optimizers()
        g.zero_grad()
        d.zero_grad()

    def one_player(self, opt, loss_fn, final):
        self.toggle_optimizer(opt)
        ctx = nullcontext() if final else self.trainer.strategy.block_backward_sync()
        with ctx:
            loss = loss_fn()
            self.manual_backward(loss / self.args.accum)
        if final:
            self.clip_gradients(opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            opt.step()
            opt.zero_grad()
        self.untoggle_optimizer(opt)
        return loss.detach()

    def training_step(self, batch, batch_idx):
        (real,) = batch
        g, d = self.optimizers()
        final = (batch_idx + 1) % self.args.accum == 0
        noise = torch.randn(len(real), self.args.latent, generator=self.rng)

        def critic():
            with torch.no_grad():
                fake = self.players.gen(noise)
            return F.softplus(-self.players.disc(real)).mean() + F.softplus(self.players.disc(fake)).mean()

        def maker():
            return F.softplus(-self.players.disc(self.players.gen(noise))).mean()

        loss_d = self.one_player(d, critic, final)
        loss_g = torch.zeros(())
        if self.updates >= self.args.critic_warmup:
            loss_g = self.one_player(g, maker, final)
        if final:
            self.updates += 1
            for k, v in self.players.gen.state_dict().items():
                self.ema[k].lerp_(v, 0.1)
        self.log_dict({"d": loss_d, "g": loss_g}, on_step=False, on_epoch=True, sync_dist=True)

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        g = torch.Generator().manual_seed(1000 + batch_idx)
        z = torch.randn(len(x), self.args.latent, generator=g)
        fake = torch.func.functional_call(self.players.gen, self.ema, (z,))
        self.log("dist", torch.cdist(fake, x).min(1).values.mean(), sync_dist=True)

    def on_train_epoch_end(self):
        m = self.trainer.callback_metrics
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} updates {self.updates} d {m['d']:.4f} g {m['g']:.4f} "
                  f"dist {m['dist']:.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=960)
    p.add_argument("--dim", type=int, default=6)
    p.add_argument("--latent", type=int, default=8)
    p.add_argument("--width", type=int, default=48)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--accum", type=int, default=3)
    p.add_argument("--critic-warmup", type=int, default=4)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--devices", type=int, default=2)
    args = p.parse_args()
    pl.seed_everything(31, verbose=False)
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=args.devices,
        strategy=DDPStrategy(process_group_backend="gloo", find_unused_parameters=True),
        max_epochs=args.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(AccumulatingGAN(args), datamodule=Mixture(args))


if __name__ == "__main__":
    main()
