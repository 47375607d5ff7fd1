"""Lightning module with two optimisers stepped by hand every few batches."""
import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Pair(L.LightningModule):
    def __init__(self, window=4):
        super().__init__()
        self.automatic_optimization = False
        self.window = window
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def training_step(self, batch, i):
        body_opt, head_opt = self.optimizers()
        x, y = batch
        last = (i + 1) % self.window == 0
        ctx = torch.enable_grad() if last else self.trainer.model.no_sync()
        with ctx:
            loss = nn.functional.cross_entropy(self.head(self.body(x)), y)
            self.manual_backward(loss / self.window)
        if last:
            head_opt.step()
            if (i + 1) % (2 * self.window) == 0:
                self.clip_gradients(body_opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
                body_opt.step()
                body_opt.zero_grad()
            head_opt.zero_grad()
        self.log("loss", loss, prog_bar=False)
        if self.global_rank == 0 and i % 20 == 0:
            print(f"epoch {self.current_epoch} batch {i} loss {loss.item():.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.body.parameters(), lr=4e-3), torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)


def main():
    L.seed_everything(3, verbose=False)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 16, generator=g)
    y = (x @ torch.randn(16, 4, generator=g)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    net = Pair()
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(net, loader)
    total = trainer.strategy.all_gather(sum(p.detach().double().sum() for p in net.parameters()))
    if trainer.is_global_zero:
        print("checksums", total.tolist())


if __name__ == "__main__":
    main()
