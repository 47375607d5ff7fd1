import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import IGNORE, NUM_CLASSES, TileDataset
from net import SmallUNet

log = logging.getLogger("landcover")


@dataclass
class Config:
    epochs: int = 3
    batch_size: int = 2
    lr: float = 0.05
    tiles: int = 64
    seed: int = 11


class ConfusionMatrix:
    def __init__(self, n):
        self.n = n
        self.mat = torch.zeros(n, n, dtype=torch.float64)

    def update(self, pred, target):
        keep = target != IGNORE
        idx = target[keep] * self.n + pred[keep]
        self.mat += torch.bincount(idx, minlength=self.n ** 2).view(self.n, self.n)

    def miou(self):
        mat = self.mat.clone()
        dist.all_reduce(mat)
        inter = mat.diag()
        union = mat.sum(0) + mat.sum(1) - inter
        return (inter / union.clamp(min=1)).mean().item()


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(cfg.seed)
        train = TileDataset(cfg.tiles, seed=3)
        val = TileDataset(16, seed=4, clouded=0.0)
        self.sampler = DistributedSampler(train, shuffle=True, seed=cfg.seed, drop_last=True)
        self.train_loader = DataLoader(train, cfg.batch_size, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(val, 4, sampler=DistributedSampler(val, shuffle=False))
        self.model = DistributedDataParallel(SmallUNet(NUM_CLASSES))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
        total = cfg.epochs * len(self.train_loader)
        self.sched = torch.optim.lr_scheduler.PolynomialLR(self.opt, total_iters=total, power=0.9)

    def criterion(self, logits, masks):
        summed = F.cross_entropy(logits, masks, ignore_index=IGNORE, reduction="sum")
        return summed / (masks != IGNORE).sum().clamp(min=1)

    def train_epoch(self, epoch):
        self.model.train()
        self.sampler.set_epoch(epoch)
        running, seen, empty = 0.0, 0, 0
        for images, masks in self.train_loader:
            empty += int((masks == IGNORE).all())
            logits = self.model(images)
            loss = self.criterion(logits, masks)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.sched.step()
            running += loss.item()
            seen += 1
        if self.rank == 0:
            log.info("epoch %d loss %.4f lr %.4f, %d unlabeled batches", epoch,
                     running / max(seen, 1), self.sched.get_last_lr()[0], empty)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        cm = ConfusionMatrix(NUM_CLASSES)
        for images, masks in self.val_loader:
            cm.update(self.model.module(images).argmax(1), masks)
        return cm.miou()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.train_epoch(epoch)
            miou = self.evaluate()
            if self.rank == 0:
                log.info("epoch %d mIoU %.4f", epoch, miou)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=Config.epochs)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    parser.add_argument("--lr", type=float, default=Config.lr)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s " + os.environ["RANK"] + " | %(message)s")
    dist.init_process_group("gloo")
    Trainer(Config(epochs=args.epochs, batch_size=args.batch_size, lr=args.lr)).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
