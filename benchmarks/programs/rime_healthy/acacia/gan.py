import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


def mlp(i, o, h=96):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def ring(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.randint(0, 8, (n,), generator=g) * 6.283 / 8
    return torch.stack([t.cos(), t.sin()], 1) + 0.05 * torch.randn(n, 2, generator=g)


class RingGAN(L.LightningModule):
    def __init__(self, latent=8, lr=1e-3, d_steps=2, accumulate=2):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.gen, self.disc = mlp(latent, 2), mlp(2, 1)

    def noise(self, n):
        return torch.randn(n, self.hparams.latent, device=self.device)

    def training_step(self, batch, idx):
        g_opt, d_opt = self.optimizers()
        real, acc = batch[0], self.hparams.accumulate
        last_micro = (idx + 1) % acc == 0

        with d_opt.toggle_model(sync_grad=last_micro):
            fake = self.gen(self.noise(len(real))).detach()
            d_loss = F.softplus(-self.disc(real)).mean() + F.softplus(self.disc(fake)).mean()
            self.manual_backward(d_loss / acc)
            if last_micro:
                self.clip_gradients(d_opt, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
                d_opt.step()
                d_opt.zero_grad()

        if (idx // acc + 1) % self.hparams.d_steps == 0:
            with g_opt.toggle_model(sync_grad=last_micro):
                g_loss = F.softplus(-self.disc(self.gen(self.noise(len(real))))).mean()
                self.manual_backward(g_loss / acc)
                if last_micro:
                    self.clip_gradients(g_opt, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
                    g_opt.step()
                    g_opt.zero_grad()
            self.log("g_loss", g_loss.detach())
        self.log("d_loss", d_loss.detach(), prog_bar=True)

    def validation_step(self, batch, idx):
        fake = self.gen(self.noise(512))
        near = torch.cdist(fake, batch[0]).min(1).values.mean()
        self.log("val_dist", near, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} val_dist {self.trainer.callback_metrics['val_dist']:.4f}", flush=True)

    def configure_optimizers(self):
        kw = dict(lr=self.hparams.lr, betas=(0.5, 0.99))
        return [torch.optim.Adam(self.gen.parameters(), **kw), torch.optim.Adam(self.disc.parameters(), **kw)], []


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--devices", type=int, default=2)
    args = ap.parse_args()
    L.seed_everything(1)
    train = DataLoader(TensorDataset(ring(8192, 1)), batch_size=64, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(ring(1024, 2)), batch_size=512)
    trainer = L.Trainer(accelerator="cpu", devices=args.devices, strategy="ddp_find_unused_parameters_true", max_epochs=args.epochs,
                        logger=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=10,
                        callbacks=[ModelCheckpoint("ckpt", monitor="val_dist", mode="min", save_top_k=1)])
    model = RingGAN()
    torch.manual_seed(100 + trainer.global_rank)
    trainer.fit(model, train, val)


if __name__ == "__main__":
    main()
