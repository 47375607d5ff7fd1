"""Sequence classifier on top of a small encoder, trained with accelerate.

    torchrun --nproc-per-node 2 vendace/main.py

The validation set does not divide by the number of processes; ``gather_for_metrics``
removes the samples that were added to fill the last batch.
"""
import argparse
import logging
import random
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("clf")


@dataclass
class Config:
    vocab: int = 50
    max_len: int = 18
    classes: int = 5
    train_size: int = 512
    val_size: int = 77
    batch: int = 16
    accum: int = 2
    epochs: int = 6
    lr: float = 3e-3
    patience: int = 2
    min_gain: float = 0.01
    seed: int = 2
    history: list = field(default_factory=list)


class Motifs(Dataset):
    """The class is the residue of the most frequent marker token in the row."""

    def __init__(self, cfg: Config, size: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(size):
            n = int(torch.randint(8, cfg.max_len + 1, (1,), generator=g))
            y = int(torch.randint(0, cfg.classes, (1,), generator=g))
            ids = torch.randint(cfg.classes + 1, cfg.vocab, (n,), generator=g)
            where = torch.randperm(n, generator=g)[:4]
            ids[where] = y + 1
            self.rows.append((ids, y))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows, max_len: int):
    ids = torch.zeros(len(rows), max_len, dtype=torch.long)
    for r, (row, _) in enumerate(rows):
        ids[r, :len(row)] = row
    return ids, torch.tensor([y for _, y in rows])


class Classifier(nn.Module):
    def __init__(self, cfg: Config, dim: int = 48):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.zeros(cfg.max_len, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, cfg.classes)

    def forward(self, ids):
        pad = ids == 0
        h = self.enc(self.tok(ids) + self.pos, src_key_padding_mask=pad)
        keep = (~pad).float()[..., None]
        return self.head((h * keep).sum(1) / keep.sum(1))


class EarlyStop:
    """Lives on the main process; its verdict is sent to the others."""

    def __init__(self, patience: int, min_gain: float):
        self.patience, self.min_gain = patience, min_gain
        self.best, self.bad = -1.0, 0

    def update(self, metric: float) -> bool:
        if metric > self.best + self.min_gain:
            self.best, self.bad = metric, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def evaluate(acc: Accelerator, model, loader):
    model.eval()
    right, seen, loss = 0, 0, 0.0
    with torch.no_grad():
        for ids, y in loader:
            logits = model(ids)
            logits, y = acc.gather_for_metrics((logits, y))
            right += (logits.argmax(-1) == y).sum().item()
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            seen += len(y)
    model.train()
    return right / seen, loss / seen, seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--lr", type=float, default=Config.lr)
    ap.add_argument("--patience", type=int, default=Config.patience)
    a = ap.parse_args()
    cfg = Config(epochs=a.epochs, lr=a.lr, patience=a.patience)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=cfg.accum)
    set_seed(cfg.seed)
    model = Classifier(cfg)

    def pad(rows):
        return collate(rows, cfg.max_len)

    train = DataLoader(Motifs(cfg, cfg.train_size, 10), cfg.batch, shuffle=True, collate_fn=pad, drop_last=True)
    val = DataLoader(Motifs(cfg, cfg.val_size, 11), cfg.batch, collate_fn=pad)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    model, opt, train, val = acc.prepare(model, opt, train, val)
    updates = cfg.epochs * len(train) // cfg.accum
    sched = torch.optim.lr_scheduler.OneCycleLR(opt.optimizer, cfg.lr, total_steps=updates + 1)
    set_seed(cfg.seed, device_specific=True)

    stopper = EarlyStop(cfg.patience, cfg.min_gain)
    for epoch in range(cfg.epochs):
        total = torch.zeros(())
        for ids, y in train:
            with acc.accumulate(model):
                loss = F.cross_entropy(model(ids), y)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                if acc.sync_gradients:
                    sched.step()
                opt.zero_grad()
            total += loss.detach()
        mean = acc.reduce(total / len(train), reduction="mean").item()
        accuracy, vloss, seen = evaluate(acc, model, val)
        verdict = [None]
        if acc.is_main_process:
            verdict[0] = {"stop": stopper.update(accuracy), "best": stopper.best}
            log.info("epoch %d train %.4f val %.4f acc %.3f on %d rows", epoch, mean, vloss, accuracy, seen)
        broadcast_object_list(verdict, from_process=0)
        cfg.history.append((mean, accuracy, verdict[0]["best"]))
        if verdict[0]["stop"]:
            break

    acc.wait_for_everyone()
    if acc.is_main_process:
        acc.save({"model": acc.unwrap_model(model).state_dict(), "history": cfg.history,
                  "py": random.random()}, "vendace.pt")
    acc.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
