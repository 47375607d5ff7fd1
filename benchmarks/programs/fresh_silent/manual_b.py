import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(L.LightningModule):
    def __init__(self, accumulate, width=1024):
        super().__init__()
        self.automatic_optimization = False
        self.accumulate = accumulate
        self.encoder = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))
        self.decoder = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 64))

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        opt = self.optimizers()
        boundary = (batch_idx + 1) % self.accumulate == 0
        loss = F.mse_loss(self(x), x) / self.accumulate
        self.manual_backward(loss)
        if boundary:
            self.clip_gradients(opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            opt.step()
            opt.zero_grad()

    def on_train_epoch_end(self):
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch} step {self.global_step}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def dataset():
    g = torch.Generator().manual_seed(60)
    basis = torch.randn(8, 64, generator=g)
    return TensorDataset(torch.randn(1024, 8, generator=g) @ basis)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--accumulate", type=int, default=8)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(AutoEncoder(args.accumulate), DataLoader(dataset(), batch_size=8, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
