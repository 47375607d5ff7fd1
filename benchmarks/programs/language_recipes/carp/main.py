"""DDP over document streams of different length, ended cleanly by the join context.

    torchrun --nproc-per-node 2 carp/main.py

Each rank owns whole files, a file never crosses ranks; ranks therefore see
different numbers of batches per epoch.
"""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

log = logging.getLogger("uneven")


@dataclass
class Config:
    vocab: int = 48
    seq: int = 16
    files: int = 11
    batch: int = 4
    epochs: int = 3
    dim: int = 48
    lr: float = 0.5
    seed: int = 13


def file_rows(index: int, cfg: Config) -> torch.Tensor:
    g = torch.Generator().manual_seed(9_000 + index)
    n = int(torch.randint(6, 22, (1,), generator=g))
    start = torch.randint(0, cfg.vocab, (n, 1), generator=g)
    stride = 1 + index % 4
    return (start + stride * torch.arange(cfg.seq + 1)) % cfg.vocab


class FileStream(IterableDataset):
    def __init__(self, cfg: Config, rank: int, world: int):
        self.cfg, self.rank, self.world = cfg, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.cfg.seed + self.epoch)
        order = torch.randperm(self.cfg.files, generator=g).tolist()
        for f in order[self.rank::self.world]:
            rows = file_rows(f, self.cfg)
            yield from rows[torch.randperm(len(rows), generator=g)]


class LM(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.rnn = nn.GRU(cfg.dim, cfg.dim, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(self.norm(h))


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = DDP(LM(cfg))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr)
        self.stream = FileStream(cfg, self.rank, self.world)
        self.loader = DataLoader(self.stream, batch_size=cfg.batch)

    def loss(self, rows):
        logits = self.model(rows[:, :-1])
        return F.cross_entropy(logits.reshape(-1, self.cfg.vocab), rows[:, 1:].reshape(-1))

    def set_lr(self, epoch: int):
        for g in self.opt.param_groups:
            g["lr"] = self.cfg.lr * 0.7 ** epoch

    def epoch(self, epoch: int):
        self.stream.set_epoch(epoch)
        self.set_lr(epoch)
        total, batches, docs = 0.0, 0, 0
        with self.model.join(divide_by_initial_world_size=False):
            for rows in self.loader:
                loss = self.loss(rows)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                total, batches, docs = total + loss.item(), batches + 1, docs + len(rows)
        mine = {"batches": batches, "docs": docs, "loss": total / max(1, batches)}
        table = [None] * self.world if self.rank == 0 else None
        dist.gather_object(mine, table, dst=0)
        if self.rank == 0:
            log.info("epoch %d: %s", epoch, [(t["batches"], t["docs"], round(t["loss"], 4)) for t in table])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--files", type=int, default=Config.files)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = Trainer(Config(epochs=a.epochs, files=a.files))
    for e in range(t.cfg.epochs):
        t.epoch(e)
    dist.barrier()
    if t.rank == 0:
        torch.save(t.model.module.state_dict(), "carp_lm.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
