import lightning as L
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Tabular(L.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
        self.epoch_losses = []
        self.plateau = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x).squeeze(-1), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.epoch_losses.append(F.mse_loss(self.net(x).squeeze(-1), y).detach())

    def on_validation_epoch_end(self):
        value = torch.stack(self.epoch_losses).mean()
        self.epoch_losses.clear()
        self.log("val_loss", value, sync_dist=True)
        if not self.trainer.sanity_checking:
            self.plateau.step(self.monitored(value))

    def monitored(self, value):
        return float(value)

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=0.02)
        return opt


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    w = torch.randn(16, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x @ w).sin() + 0.5 * torch.randn(n, generator=g))


def main():
    L.seed_everything(4, verbose=False)
    model = Tabular()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=10,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = DataLoader(make_data(320, 1), batch_size=16, shuffle=True)
    val = DataLoader(make_data(96, 2), batch_size=16)
    trainer.fit(model, train, val)
    lr = trainer.optimizers[0].param_groups[0]["lr"]
    print(f"rank {trainer.global_rank} steps {trainer.global_step} val {float(trainer.callback_metrics['val_loss']):.4f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
