import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import Records
from telemetry import Telemetry

log = logging.getLogger("fit")


@dataclass
class Config:
    width: int = 32
    train_n: int = 1536
    val_n: int = 256
    batch: int = 32
    workers: int = 2
    epochs: int = 3
    lr: float = 2e-3
    seed: int = 3


class Classifier(nn.Module):
    def __init__(self, width, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.LayerNorm(96),
                                  nn.Linear(96, 48), nn.GELU())
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.body(x))


class Fit:
    def __init__(self, cfg, telemetry):
        self.cfg, self.telemetry = cfg, telemetry
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        full = Records(cfg.train_n + cfg.val_n, cfg.width, telemetry, seed=cfg.seed)
        self.train_set = torch.utils.data.Subset(full, range(cfg.train_n))
        mine = range(cfg.train_n + rank, len(full), world)
        self.val_data = [full[i] for i in mine]
        self.model = DDP(Classifier(cfg.width))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.sampler = DistributedSampler(self.train_set, seed=cfg.seed)

    def train_loader(self):
        return DataLoader(self.train_set, batch_size=self.cfg.batch, sampler=self.sampler,
                          num_workers=self.cfg.workers, multiprocessing_context="fork")

    def epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        seen, total = 0, 0.0
        for x, y in self.train_loader():
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            seen += len(x)
            total += loss.item() * len(x)
        return total / seen

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = torch.zeros(2)
        for x, y in DataLoader(self.val_data, batch_size=64):
            hits += torch.tensor([(self.model.module(x).argmax(1) == y).sum().item(), len(x)])
        dist.all_reduce(hits)
        return (hits[0] / hits[1]).item()

    def run(self):
        for epoch in range(self.cfg.epochs):
            acc = self.validate()
            log.info("before epoch %d: accuracy %.3f", epoch, acc)
            loss = self.epoch(epoch)
            log.info("epoch %d loss %.4f", epoch, loss)
            self.telemetry.event("epoch", epoch=epoch, loss=loss, acc=acc)
            self.telemetry.flush()
        log.info("final accuracy %.3f", self.validate())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    folder = os.path.join("telemetry", os.path.basename(os.path.dirname(os.path.abspath(__file__))))
    telemetry = Telemetry(folder, rank, sender=int(os.environ["LOCAL_RANK"]) == 0)
    cfg = Config(epochs=args.epochs, workers=args.workers)
    Fit(cfg, telemetry).run()
    telemetry.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
