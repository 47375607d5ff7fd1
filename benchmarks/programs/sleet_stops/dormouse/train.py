#!/usr/bin/env python
"""Sentiment GRU on clinic notes. Each site keeps its own notes, and sites differ in size."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    epochs: int = 4
    notes: int = 480
    batch: int = 16
    vocab: int = 200
    dim: int = 40
    lr: float = 0.5


class NoteModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=0)
        self.gru = nn.GRU(cfg.dim, cfg.dim, batch_first=True, bidirectional=True)
        self.cls = nn.Linear(2 * cfg.dim, 3)

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        live = (ids > 0).unsqueeze(-1)
        return self.cls((h * live).sum(1) / live.sum(1).clamp(min=1))


def site_notes(cfg, site):
    g = torch.Generator().manual_seed(site)
    n = int(cfg.notes * (1 + 0.35 * site)) - 7 * site
    words = torch.randint(1, cfg.vocab, (n, 20), generator=g)
    lengths = torch.randint(6, 20, (n,), generator=g)
    words[torch.arange(20) >= lengths[:, None]] = 0
    y = (words.sum(1) / lengths // 34).long().clamp(2, 4) - 2
    return words, y


def batches(words, y, size, gen):
    for i in torch.randperm(len(y), generator=gen).split(size):
        yield words[i], y[i]


def run_epoch(model, opt, data, cfg, gen):
    steps = 0
    with Join([model], throw_on_early_termination=False):
        for ids, y in batches(*data, cfg.batch, gen):
            loss = nn.functional.cross_entropy(model(ids), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
    return steps, loss.item()


def main():
    cfg = Config()
    ap = argparse.ArgumentParser()
    for k, v in vars(cfg).items():
        ap.add_argument(f"--{k}", type=type(v), default=v)
    cfg = Config(**vars(ap.parse_args()))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[site {rank}] %(message)s")
    torch.manual_seed(21)
    model = DDP(NoteModel(cfg))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    data = site_notes(cfg, rank)
    gen = torch.Generator().manual_seed(rank)
    for epoch in range(cfg.epochs):
        steps, loss = run_epoch(model, opt, data, cfg, gen)
        logging.info("epoch %d: %d steps, last loss %.3f", epoch, steps, loss)
        with torch.no_grad():
            right = (model.module(data[0]).argmax(1) == data[1]).sum()
        table = torch.tensor([right.item(), len(data[1])], dtype=torch.float32)
        dist.all_reduce(table)
        if rank == 0:
            logging.info("epoch %d accuracy over all sites %.3f", epoch, table[0] / table[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
