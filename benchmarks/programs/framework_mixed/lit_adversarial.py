import logging
import os
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class DomainAdversarial(pl.LightningModule):
    """Features must tell the label and hide the domain."""

    def __init__(self, lr=5e-3, lam=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.features = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
        self.label_head = nn.Linear(48, 3)
        self.domain_head = nn.Linear(48, 2)

    def training_step(self, batch, batch_idx):
        x, y, d = batch
        opt = self.optimizers()
        z = self.features(x)
        cls = F.cross_entropy(self.label_head(z), y)
        dom = F.cross_entropy(self.domain_head(z), d)
        loss = cls - self.hparams.lam * dom
        opt.zero_grad()
        loss.backward()
        self.clip_gradients(opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        opt.step()
        self.log("cls", cls, sync_dist=True, on_step=False, on_epoch=True)
        self.log("dom", dom, sync_dist=True, on_step=False, on_epoch=True)

    def on_train_epoch_end(self):
        m = self.trainer.callback_metrics
        self.print(f"epoch {self.current_epoch} cls {m['cls']:.4f} dom {m['dom']:.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


def loader(batch_size=16, n=480):
    g = torch.Generator().manual_seed(8)
    d = torch.randint(0, 2, (n,), generator=g)
    x = torch.randn(n, 12, generator=g) + d.unsqueeze(1) * 0.5
    y = x[:, :3].argmax(1)
    return DataLoader(TensorDataset(x, y, d), batch_size, shuffle=True, drop_last=True)


if __name__ == "__main__":
    pl.seed_everything(3, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DomainAdversarial(), loader())
