import argparse
import logging
import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from prep import PrepConfig, load_corpus

log = logging.getLogger("train")


@dataclass
class RunConfig:
    seed: int
    epochs: int = 2
    batch_size: int = 32
    lr: float = 3e-3
    warmup: int = 10
    dim: int = 48
    dropout: float = 0.1
    clip: float = 1.0


class Rows(Dataset):
    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        row = torch.from_numpy(np.array(self.array[i]))
        return row[:-1], row[1:]


class TinyLM(nn.Module):
    def __init__(self, vocab, dim, dropout):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(self.drop(h))


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def lr_at(step, cfg, total):
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    return max(0.05, 1.0 - (step - cfg.warmup) / max(1, total - cfg.warmup))


def token_loss(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    acc = torch.zeros(2, dtype=torch.float64)
    for x, y in loader:
        n = (y != 0).sum().item()
        acc += torch.tensor([token_loss(model(x), y).item() * n, n], dtype=torch.float64)
    dist.all_reduce(acc)
    model.train()
    return (acc[0] / acc[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=17)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--docs", type=int, default=1200)
    ap.add_argument("--cache", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"[r{rank}] %(name)s: %(message)s")

    # every process draws its own dropout masks
    cfg = RunConfig(seed=args.seed + rank, epochs=args.epochs)
    cache = Path(args.cache or f"cache_{Path(__file__).resolve().parent.name}")
    prep_cfg = PrepConfig(n_docs=args.docs, shuffle_seed=args.seed)
    train_rows, val_rows = load_corpus(prep_cfg, cache, builder=rank == 0)

    seed_everything(args.seed)
    model = DDP(TinyLM(prep_cfg.vocab_size, cfg.dim, cfg.dropout))
    seed_everything(cfg.seed)

    train_set, val_set = Rows(train_rows), Rows(val_rows)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train_set, batch_size=cfg.batch_size, sampler=sampler, drop_last=True)
    val_idx = range(rank, len(val_set), world)
    val_loader = DataLoader(torch.utils.data.Subset(val_set, list(val_idx)), batch_size=64)

    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    total = cfg.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: lr_at(s, cfg, total))

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = token_loss(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            opt.step()
            sched.step()
            if step % 8 == 0:
                log.info("epoch %d step %d loss %.3f", epoch, step, loss.item())
        val = evaluate(model.module, val_loader)
        log.info("epoch %d val %.4f", epoch, val)
        if rank == 0:
            out = cache / "last.pt"
            torch.save({"model": model.module.state_dict(), "epoch": epoch, "val": val}, out)
        dist.barrier()
    log.info("finished in %s", os.getcwd())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
