"""Lightning with a ModelCheckpoint, resumed by `--ckpt`. `--forget trainer` takes the weights of the file and nothing else."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--ckpt", default="")
parser.add_argument("--forget", default="")
options = parser.parse_args()


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


lightning.seed_everything(1)
generator = torch.Generator().manual_seed(0)
samples = TensorDataset(torch.randn(64, 16, generator=generator), torch.randint(0, 4, (64,), generator=generator))
model, ckpt = Digits(), options.ckpt or None
if ckpt and options.forget == "trainer":
    model.load_state_dict(torch.load(ckpt, map_location="cpu", weights_only=False)["state_dict"])
    ckpt = None
saves = lightning.pytorch.callbacks.ModelCheckpoint(options.out, save_last=True, every_n_epochs=1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, callbacks=[saves], logger=False,
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
)  # fmt: skip
trainer.fit(model, DataLoader(samples, batch_size=8, shuffle=True), ckpt_path=ckpt)
