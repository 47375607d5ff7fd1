import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Forecaster(L.LightningModule):
    def __init__(self, dim=32, depth=6, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.inp = nn.Linear(16, dim)
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("loss", loss, prog_bar=False)
        return loss

    def on_before_optimizer_step(self, optimizer):
        if self.trainer.global_step % 20 != 0:
            return
        names = [name for name, _ in self.named_parameters()]
        norms = torch.stack([param.grad.norm() for param in self.parameters()])
        norms = self.trainer.strategy.reduce(norms, reduce_op="mean")
        self.log_dict({f"grad/{name}": norm for name, norm in zip(names, norms)}, on_step=True, on_epoch=False)

    def on_train_epoch_end(self):
        first = self.trainer.callback_metrics.get("grad/inp.weight")
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch} loss {float(self.trainer.callback_metrics['loss']):.4f} grad {float(first):.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(1)
    x = torch.randn(2560, 16)
    y = (x[:, 0] * x[:, 1] + x[:, 2]).tanh()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, num_workers=0)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Forecaster(), loader)


if __name__ == "__main__":
    main()
