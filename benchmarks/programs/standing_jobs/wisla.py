"""Tabular classifier fed by a prefetching thread that parses and normalises rows ahead."""
import argparse
import logging
import queue
import threading
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("tab")


@dataclass
class Config:
    rows: int = 1920
    columns: int = 14
    classes: int = 3
    batch: int = 24
    depth: int = 4
    epochs: int = 3
    lr: float = 6e-3
    seed: int = 201


def csv_rows(cfg):
    """The export as it comes: text, one row a line, the class number last."""
    rng = np.random.default_rng(cfg.seed)
    w = rng.normal(size=(cfg.columns, cfg.classes))
    x = rng.normal(size=(cfg.rows, cfg.columns))
    y = (x @ w + 0.3 * rng.normal(size=(cfg.rows, cfg.classes))).argmax(1)
    y[1345] = cfg.classes    # "other", came with a newer export
    return [",".join(f"{v:.4f}" for v in row) + f",{label}" for row, label in zip(x, y)
            if label < cfg.classes]


class Prefetcher:
    def __init__(self, cfg, lines, rank, world):
        self.cfg, self.lines = cfg, lines
        self.rank, self.world = rank, world
        self.queue = queue.Queue(maxsize=cfg.depth)
        self.thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self.thread.start()

    def _order(self, epoch):
        rng = np.random.default_rng((self.cfg.seed, epoch))
        return rng.permutation(len(self.lines))[self.rank:: self.world]

    def _parse(self, idx):
        table = np.array([self.lines[i].split(",") for i in idx], dtype=np.float64)
        x = table[:, :-1]
        x = (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-6)
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(table[:, -1].astype(int))

    def _fill(self):
        for epoch in range(self.cfg.epochs):
            order = self._order(epoch)
            for at in range(0, len(order), self.cfg.batch):
                self.queue.put(self._parse(order[at: at + self.cfg.batch]))
            self.queue.put(None)

    def epoch(self):
        while True:
            item = self.queue.get()
            if item is None:
                return
            yield item

    def close(self):
        self.thread.join()


class Tabular(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(cfg.columns, 48)
        self.mid = nn.Linear(48, 48)
        self.out = nn.Linear(48, cfg.classes)

    def forward(self, x):
        h = F.relu(self.inp(x))
        return self.out(h + F.relu(self.mid(h)))


class Averager:
    def __init__(self, model):
        self.params = list(model.parameters())
        self.world = dist.get_world_size()
        with torch.no_grad():
            for p in self.params:
                dist.broadcast(p, src=0)

    def __call__(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for p in self.params:
            p.grad.copy_(flat[at: at + p.numel()].view_as(p))
            at += p.numel()


def train(cfg, rank, world):
    torch.manual_seed(cfg.seed)
    model = Tabular(cfg)
    average = Averager(model)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.7)
    feed = Prefetcher(cfg, csv_rows(cfg), rank, world)
    for epoch in range(cfg.epochs):
        tally = torch.zeros(3)
        for x, y in feed.epoch():
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            average()
            opt.step()
            tally += torch.tensor([loss.item() * len(y), (logits.argmax(1) == y).sum().item(),
                                   len(y)])
        sched.step()
        dist.all_reduce(tally)
        log.info("epoch %d loss %.4f acc %.3f", epoch, tally[0] / tally[2], tally[1] / tally[2])
    feed.close()
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--depth", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, depth=args.depth)
    train(cfg, rank, world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
