import logging
import os
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class LogLines(IterableDataset):
    """Streams 'log lines' file by file, as from a bucket."""

    def __init__(self, files, rows=40):
        self.files, self.rows = files, rows
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    def read(self, name):
        g = torch.Generator().manual_seed(int(name.split("-")[1]))
        for _ in range(self.rows):
            tokens = torch.randint(0, 100, (10,), generator=g)
            yield tokens, (tokens[0] > tokens[1]).float()

    def __iter__(self):
        for name in self.files[self.rank :: self.world]:
            yield from self.read(name)


class Encoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(100, 24)
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.tok = nn.Embedding(100, 24)
        self.out = nn.Linear(48, 1)

    def forward(self, t):
        h = self.gru(self.tok(t))[0][:, -1]
        return self.out(torch.cat([h, self.emb(t)], -1)).squeeze(-1)

    def training_step(self, batch, _):
        t, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self(t), y)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class Report(L.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            print(f"epoch {trainer.current_epoch}: {trainer.callback_metrics['loss']:.4f}", flush=True)


def main():
    L.seed_everything(0, verbose=False)
    files = [f"part-{i}" for i in range(8)]
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp", max_epochs=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Report()],
    )
    trainer.fit(Encoder(), DataLoader(LogLines(files), batch_size=16))


if __name__ == "__main__":
    main()
