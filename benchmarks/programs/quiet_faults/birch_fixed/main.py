import argparse
import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import Tiles
from nets import Classifier, pretend_pretrained

log = logging.getLogger("finetune")


@dataclass
class FinetuneConfig:
    epochs: int = 5
    thaw_epoch: int = 2
    batch_size: int = 24
    head_lr: float = 3e-3
    backbone_lr: float = 1e-3
    weight_decay: float = 0.01
    train_size: int = 960
    val_size: int = 240
    seed: int = 5
    out_dir: Path = field(default_factory=lambda: Path("runs") / "finetune")


class Finetuner:
    def __init__(self, cfg: FinetuneConfig):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = pretend_pretrained(Classifier(6))
        self.set_backbone_trainable(False)
        self.ddp = DDP(self.model)
        torch.manual_seed(cfg.seed + self.rank)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": self.model.head.parameters(), "lr": cfg.head_lr},
                {"params": self.model.backbone.parameters(), "lr": cfg.backbone_lr},
            ],
            weight_decay=cfg.weight_decay,
        )
        self.train_set = Tiles(cfg.train_size, seed=1)
        self.val_set = Tiles(cfg.val_size, seed=2)
        self.sampler = DistributedSampler(self.train_set, shuffle=True, seed=cfg.seed)
        self.train_loader = DataLoader(self.train_set, batch_size=cfg.batch_size, sampler=self.sampler)
        self.val_loader = DataLoader(
            self.val_set, batch_size=60, sampler=DistributedSampler(self.val_set, shuffle=False)
        )
        steps = len(self.train_loader) * cfg.epochs
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=[cfg.head_lr, cfg.backbone_lr], total_steps=steps, pct_start=0.2
        )

    def set_backbone_trainable(self, flag):
        for p in self.model.backbone.parameters():
            p.requires_grad_(flag)

    def thaw(self):
        self.set_backbone_trainable(True)
        self.ddp = DDP(self.model)
        if self.rank == 0:
            n = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
            log.info("backbone thawed, %d trainable parameters", n)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.ddp.train()
        total = torch.zeros(2)
        for images, labels in self.train_loader:
            loss = F.cross_entropy(self.ddp(images), labels, label_smoothing=0.05)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            self.scheduler.step()
            total += torch.tensor([loss.item() * len(labels), float(len(labels))])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hit = torch.zeros(2)
        for images, labels in self.val_loader:
            pred = self.model(images).argmax(1)
            hit += torch.tensor([(pred == labels).sum().item(), float(len(labels))])
        dist.all_reduce(hit)
        return (hit[0] / hit[1]).item()

    def save(self, epoch, accuracy):
        if self.rank != 0:
            return
        self.cfg.out_dir.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"epoch": epoch, "accuracy": accuracy, "model": self.model.state_dict(),
             "optimizer": self.optimizer.state_dict()},
            self.cfg.out_dir / "last.pt",
        )

    def fit(self):
        for epoch in range(self.cfg.epochs):
            if epoch == self.cfg.thaw_epoch:
                self.thaw()
            loss = self.train_epoch(epoch)
            accuracy = self.validate()
            self.save(epoch, accuracy)
            if self.rank == 0:
                log.info("epoch %d loss %.4f accuracy %.3f", epoch, loss, accuracy)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--thaw-epoch", type=int, default=2)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    Finetuner(FinetuneConfig(epochs=args.epochs, thaw_epoch=args.thaw_epoch)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
