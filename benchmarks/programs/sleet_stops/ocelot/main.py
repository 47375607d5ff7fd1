import argparse
import logging
import tempfile

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from callbacks import BeamReport


class TinyLM(L.LightningModule):
    def __init__(self, vocab=40, dim=32, lr=3e-3):
        super().__init__()
        self.vocab, self.lr = vocab, lr
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(32, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        n = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.head(self.enc(self.emb(ids) + self.pos[:n], mask=mask, is_causal=True))

    def training_step(self, batch, _):
        (ids,) = batch
        out = self(ids[:, :-1])
        return nn.functional.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten())

    def validation_step(self, batch, _):
        self.log("val_loss", self.training_step(batch, _), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def walks(n, vocab, length, seed):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(0, vocab, (n, 1), generator=g)
    jump = torch.randint(1, 4, (n, length), generator=g)
    return TensorDataset(torch.cat([start, start + jump.cumsum(1)], 1) % vocab)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--beam-seconds", type=float, default=5.0)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    L.seed_everything(3)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=a.epochs, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        default_root_dir=tempfile.gettempdir(), callbacks=[BeamReport(a.beam_seconds)])
    trainer.fit(TinyLM(), DataLoader(walks(640, 40, 20, 1), 32, shuffle=True), DataLoader(walks(128, 40, 20, 2), 32))
    if trainer.is_global_zero:
        logging.info("final val loss %.3f", trainer.callback_metrics["val_loss"])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
