import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


class PointGAN(L.LightningModule):
    def __init__(self, latent=8, width=64, critic_every=2):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = mlp(latent, width, 2)
        self.critic = mlp(2, width, 1)

    def noise(self, n):
        return torch.randn(n, self.hparams.latent, device=self.device)

    def training_step(self, batch, batch_idx):
        real, = batch
        opt_g, opt_d = self.optimizers()
        bce = nn.functional.binary_cross_entropy_with_logits

        self.toggle_optimizer(opt_d)
        fake = self.generator(self.noise(len(real))).detach()
        score_real, score_fake = self.critic(real), self.critic(fake)
        loss_d = bce(score_real, torch.ones_like(score_real)) + bce(score_fake, torch.zeros_like(score_fake))
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        self.clip_gradients(opt_d, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        opt_d.step()
        self.untoggle_optimizer(opt_d)

        if batch_idx % self.hparams.critic_every == 0:
            self.toggle_optimizer(opt_g)
            score = self.critic(self.generator(self.noise(len(real))))
            loss_g = bce(score, torch.ones_like(score))
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            self.log("g", loss_g, on_step=False, on_epoch=True, sync_dist=True)
        self.log("d", loss_d, on_step=False, on_epoch=True, sync_dist=True)

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch}", flush=True)

    def configure_optimizers(self):
        g = torch.optim.Adam(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.99))
        d = torch.optim.Adam(self.critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
        sched = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (g, d)]
        return [g, d], sched


def main():
    L.seed_everything(0)
    angle = torch.rand(2048) * 6.28
    ring = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(2048, 2)
    loader = DataLoader(TensorDataset(ring), batch_size=32, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_find_unused_parameters_true", max_epochs=3, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(PointGAN(), loader)
    if trainer.is_global_zero:
        print({k: round(float(v), 3) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
