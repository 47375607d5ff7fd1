import argparse
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Plateau(L.Callback):
    def __init__(self, target):
        self.target = target

    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        loss = trainer.callback_metrics["val_loss"]
        if loss < self.target:
            trainer.should_stop = True
        if trainer.is_global_zero:
            print(f"epoch {trainer.current_epoch} val {loss:.4f}", flush=True)


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))

    def _loss(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def training_step(self, batch, _):
        return self._loss(batch)

    def validation_step(self, batch, _):
        self.log("val_loss", self._loss(batch), on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 7, generator=g)
    return TensorDataset(x, x[:, :3].abs().sum(1, keepdim=True))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--target", type=float, default=0.15)
    ap.add_argument("--max-epochs", type=int, default=30)
    a = ap.parse_args()
    L.seed_everything(5, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=a.max_epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Plateau(a.target)],
    )
    trainer.fit(Regressor(), DataLoader(dataset(320, 1), batch_size=16, shuffle=True),
                DataLoader(dataset(96, 2), batch_size=16))
    print(f"rank {trainer.global_rank} stopped after {trainer.global_step} steps", flush=True)
    trainer.strategy.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
