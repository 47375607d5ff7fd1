"""CTC tone recogniser with Lightning."""
import argparse
import logging
import tempfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from corpus import VOCAB, FeatureCache, FeatureDataset, collate

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
log = logging.getLogger("asr")


class SpeechData(L.LightningDataModule):
    """Every rank keeps only its part of the corpus in memory."""

    def __init__(self, n_train=1200, n_val=160, n_mels=24, batch_size=20, cache=None):
        super().__init__()
        self.n_train, self.n_val, self.n_mels = n_train, n_val, n_mels
        self.batch_size, self.cache = batch_size, cache

    def setup(self, stage):
        rank, world = self.trainer.global_rank, self.trainer.world_size
        root = self.trainer.strategy.broadcast(self.cache or tempfile.mkdtemp(prefix="fbank-"))
        cache = FeatureCache(root, self.n_mels)
        train = list(range(self.n_train))[rank::world]
        val = list(range(self.n_train, self.n_train + self.n_val))[rank::world]
        self.train = FeatureDataset(cache.load("train", train))
        self.val = FeatureDataset(cache.load("val", val))

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, collate_fn=collate, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size, collate_fn=collate)


class CTCModel(L.LightningModule):
    def __init__(self, n_mels=24, hidden=64, lr=4e-3):
        super().__init__()
        self.lr = lr
        self.front = nn.Conv1d(n_mels, hidden, 5, 2, 2)
        self.rnn = nn.GRU(hidden, hidden // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, x):
        h = F.gelu(self.front(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(h)[0])

    def loss(self, batch):
        _, x, flen, y, tlen = batch
        lp = F.log_softmax(self(x), -1)
        return F.ctc_loss(lp.transpose(0, 1), y, (flen + 1) // 2, tlen, zero_infinity=True), lp

    def training_step(self, batch, batch_idx):
        loss, _ = self.loss(batch)
        self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch, batch_idx):
        loss, lp = self.loss(batch)
        best, _, flen, y, tlen = lp.argmax(-1), *batch[1:]
        exact = 0.0
        for b in range(len(best)):
            seq = torch.unique_consecutive(best[b, :(flen[b] + 1) // 2])
            exact += float(seq[seq > 0].tolist() == y[b, :tlen[b]].tolist())
        self.log("val_loss", loss, sync_dist=True, batch_size=len(best))
        self.log("val_exact", exact / len(best), sync_dist=True, batch_size=len(best))

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            m = self.trainer.callback_metrics
            log.info("epoch %d val_loss %.4f exact %.3f", self.current_epoch, m["val_loss"], m["val_exact"])

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), self.lr)
        total = self.trainer.estimated_stepping_batches
        return {"optimizer": opt, "lr_scheduler": {
            "scheduler": torch.optim.lr_scheduler.OneCycleLR(opt, self.lr, total_steps=int(total)), "interval": "step"}}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--devices", type=int, default=2)
    ap.add_argument("--cache", default=None)
    args = ap.parse_args()
    L.seed_everything(3)
    data = SpeechData(cache=args.cache)
    trainer = L.Trainer(accelerator="cpu", devices=args.devices, strategy="ddp", max_epochs=args.epochs,
                        use_distributed_sampler=False, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0,
                        num_sanity_val_steps=0)
    trainer.fit(CTCModel(), datamodule=data)


if __name__ == "__main__":
    main()
