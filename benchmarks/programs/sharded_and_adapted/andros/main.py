"""Stream records from disk and train a classifier on them with several processes."""
import argparse
import logging
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from corpus import StreamingRecords, write_shards

logger = logging.getLogger("stream")


@dataclass
class TrainConfig:
    data: str
    epochs: int
    batch_size: int
    workers: int
    lr: float
    seed: int


class Meter:
    def __init__(self):
        self.total, self.n = 0.0, 0

    def add(self, value, n):
        self.total += value * n
        self.n += n

    def reduce(self):
        t = torch.tensor([self.total, float(self.n)], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item()


class Classifier(nn.Module):
    def __init__(self, dim=24, hidden=96, classes=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.1),
                                 nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.net(x)


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = DDP(Classifier())
        torch.manual_seed(cfg.seed + 31 * self.rank)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=1e-3)
        self.train_set = StreamingRecords(os.path.join(cfg.data, "train"), seed=cfg.seed)
        self.loader = DataLoader(self.train_set, batch_size=cfg.batch_size, num_workers=cfg.workers, drop_last=True)
        self.valid = self.load_valid(os.path.join(cfg.data, "valid"))

    def load_valid(self, folder):
        rows = list(StreamingRecords(folder, seed=0).records())[self.rank::self.world]
        return torch.tensor([r["x"] for r in rows]), torch.tensor([r["y"] for r in rows])

    def train_epoch(self, epoch):
        self.model.train()
        self.train_set.set_epoch(epoch)
        meter, steps = Meter(), 0
        for batch in self.loader:
            loss = F.cross_entropy(self.model(batch["x"]), batch["y"])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            meter.add(loss.item(), len(batch["y"]))
            steps += 1
        return meter.reduce(), steps

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.valid
        good = torch.tensor([(self.model.module(x).argmax(-1) == y).sum().item(), len(y)])
        dist.all_reduce(good)
        return good[0].item() / good[1].item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            began = time.time()
            loss, steps = self.train_epoch(epoch)
            acc = self.validate()
            logger.info("epoch %d | %d steps | loss %.4f | accuracy %.4f | %.1fs",
                        epoch, steps, loss, acc, time.time() - began)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default="runs/andros_data")
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=9)
    cfg = TrainConfig(**vars(ap.parse_args()))
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    if dist.get_rank() == 0:
        write_shards(os.path.join(cfg.data, "train"), shards=8, per_shard=144, dim=24, seed=1)
        write_shards(os.path.join(cfg.data, "valid"), shards=2, per_shard=150, dim=24, seed=2)
    dist.barrier()
    Runner(cfg).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
