import warnings

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import EMAWeightAveraging, GradientAccumulationScheduler
from torch.utils.data import DataLoader, TensorDataset, random_split

warnings.filterwarnings("ignore")


class Net(L.LightningModule):
    def __init__(self, dim=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Dropout(0.1), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        acc = (self.net(x).argmax(-1) == y).float().mean()
        self.log("val_acc", acc, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} updates {self.trainer.global_step}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=2e-3)
        sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=30)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    L.seed_everything(4)
    x = torch.randn(3000, 20)
    y = (x[:, :3].cumsum(1)).argmax(-1)
    train, val = random_split(TensorDataset(x, y), [2500, 500], generator=torch.Generator().manual_seed(0))
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
        callbacks=[EMAWeightAveraging(decay=0.98), GradientAccumulationScheduler({0: 1, 1: 2, 3: 4})],
    )
    trainer.fit(Net(), DataLoader(train, 16, shuffle=True), DataLoader(val, 32))
    if trainer.is_global_zero:
        print({k: round(float(v), 3) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
