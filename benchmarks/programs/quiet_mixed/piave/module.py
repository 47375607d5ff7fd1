import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F


def decorrelation(a, b):
    a = (a - a.mean(0)) / (a.std(0) + 1e-4)
    b = (b - b.mean(0)) / (b.std(0) + 1e-4)
    agree = (a * b).mean(0)
    cross = (a.t() @ b) / len(a)
    off = cross.pow(2).sum() - cross.diagonal().pow(2).sum()
    return (1 - agree).pow(2).sum() + 0.01 * off


class TwinViews(L.LightningModule):
    def __init__(self, inputs=32, width=128, embed=512, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, embed))
        self.collected = []

    def training_step(self, batch, _):
        x = batch[0]
        one = self.encoder(x + 0.1 * torch.randn_like(x))
        two = self.encoder(x + 0.1 * torch.randn_like(x))
        loss = decorrelation(one, two)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        z = F.normalize(self.encoder(batch[0]), dim=-1)
        self.collected.append(self.all_gather(z).flatten(0, 1))

    def on_validation_epoch_end(self):
        z = torch.cat(self.collected[-self.trainer.num_val_batches[0]:])
        spread = z.std(0).mean()
        uniform = torch.pdist(z[:256]).pow(2).mul(-2).exp().mean().log()
        self.collected.clear()
        self.log_dict({"spread": spread, "uniformity": uniform}, rank_zero_only=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
