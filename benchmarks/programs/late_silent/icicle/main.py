"""Sequence tagging with Lightning Fabric, model selection on validation loss."""
import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD = 0


@dataclass
class Config:
    epochs: int = 6
    batch_size: int = 16
    vocab: int = 60
    tags: int = 5
    hidden: int = 40
    lr: float = 6e-3
    seed: int = 21
    patience: int = 3
    out: str = str(Path(__file__).resolve().parent / "out")


class Records(Dataset):
    """Log records: head lines are short and regular, traces are long and noisy."""

    def __init__(self, n, vocab, tags, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            trace = bool(torch.rand((), generator=g) < 0.5)
            length = int(torch.randint(24, 40, (), generator=g)) if trace else int(torch.randint(3, 8, (), generator=g))
            x = torch.randint(1, vocab, (length,), generator=g)
            y = (x + torch.roll(x, 1)) % tags
            if trace:
                flip = torch.rand(length, generator=g) < 0.3
                y = torch.where(flip, torch.randint(0, tags, (length,), generator=g), y)
            self.rows.append((x, y))
        self.rows.sort(key=lambda r: len(r[0]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(x) for x, _ in rows)
    xs = torch.full((len(rows), width), PAD)
    ys = torch.full((len(rows), width), -100)
    for i, (x, y) in enumerate(rows):
        xs[i, :len(x)], ys[i, :len(y)] = x, y
    return xs, ys


class Tagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.hidden, padding_idx=PAD)
        self.conv = nn.Conv1d(cfg.hidden, cfg.hidden * 2, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(cfg.hidden * 2, cfg.tags)

    def forward(self, x):
        h = self.emb(x).transpose(1, 2)
        return self.out(self.drop(F.gelu(self.conv(h)).transpose(1, 2)))


@torch.no_grad()
def validate(fabric, model, rows, cfg):
    model.eval()
    share = range(fabric.global_rank * len(rows) // fabric.world_size,
                  (fabric.global_rank + 1) * len(rows) // fabric.world_size)
    nll, tokens = torch.zeros(()), torch.zeros(())
    for lo in range(share.start, share.stop, cfg.batch_size):
        x, y = collate([rows[i] for i in range(lo, min(lo + cfg.batch_size, share.stop))])
        nll += F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum", ignore_index=-100)
        tokens += (y != -100).sum()
    model.train()
    return fabric.all_reduce(nll / tokens, reduce_op="mean").item()


def train(fabric, cfg):
    seed_everything(cfg.seed, verbose=False)
    train_rows = Records(768, cfg.vocab, cfg.tags, cfg.seed)
    val_rows = Records(200, cfg.vocab, cfg.tags, cfg.seed + 1)
    model = Tagger(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(
        DataLoader(train_rows, batch_size=cfg.batch_size, shuffle=True, collate_fn=collate, drop_last=True))
    torch.manual_seed(cfg.seed + fabric.global_rank)

    best, waited = float("inf"), 0
    out = Path(cfg.out)
    for epoch in range(cfg.epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            labels = fabric.all_reduce((y != -100).sum().float(), reduce_op="mean")
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") / labels
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
        val = validate(fabric, model, val_rows, cfg)
        fabric.print(f"epoch {epoch} val_nll {val:.4f}")
        if val < best:
            best, waited = val, 0
            fabric.save(out / "best.ckpt", {"model": model, "epoch": epoch, "val": val})
        else:
            waited += 1
            if waited >= cfg.patience:
                break
    fabric.print(f"best {best:.4f}")


def main():
    ap = argparse.ArgumentParser()
    for name, kind in Config.__annotations__.items():
        ap.add_argument("--" + name.replace("_", "-"), type=kind, default=getattr(Config, name))
    cfg = Config(**vars(ap.parse_args()))
    import os
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    train(fabric, cfg)
    fabric.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
