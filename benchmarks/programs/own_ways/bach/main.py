import argparse
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shards import BANDS, N_CLASSES, ShardStream, write_split

log = logging.getLogger("spoken")


@dataclass
class Config:
    batch_size: int = 16
    epochs: int = 3
    lr: float = 2e-3
    weight_decay: float = 1e-2
    label_smoothing: float = 0.05
    clip: float = 1.0
    seed: int = 11


class Tdnn(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv1d(BANDS, width, 5, padding=2)
        self.mid = nn.Conv1d(width, width, 3, padding=2, dilation=2)
        self.norm = nn.GroupNorm(4, width)
        self.out = nn.Linear(2 * width, N_CLASSES)

    def forward(self, x):
        h = F.relu(self.stem(x.transpose(1, 2)))
        h = self.norm(F.relu(self.mid(h)))
        return self.out(torch.cat([h.mean(-1), h.amax(-1)], dim=1))


def shared_dir(rank):
    box = [tempfile.mkdtemp(prefix="spoken_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return Path(box[0])


class Trainer:
    def __init__(self, cfg, root, rank, world):
        self.cfg, self.rank, self.world = cfg, rank, world
        torch.manual_seed(cfg.seed)
        self.model = DDP(Tdnn())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr,
                                     weight_decay=cfg.weight_decay)
        self.train_stream = ShardStream(root, "train", cfg.batch_size, rank, world,
                                        seed=cfg.seed)
        self.dev_stream = ShardStream(root, "dev", cfg.batch_size, rank, world,
                                      shuffle=False, drop_last=False)
        self.step = 0

    def train_epoch(self, epoch):
        self.model.train()
        self.train_stream.set_epoch(epoch)
        running, seen = 0.0, 0
        start = time.time()
        for x, y in self.train_stream:
            loss = F.cross_entropy(self.model(x), y,
                                   label_smoothing=self.cfg.label_smoothing)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.opt.step()
            running += loss.item() * len(y)
            seen += len(y)
            self.step += 1
            if self.rank == 0 and self.step % 4 == 0:
                log.info("epoch %d step %d loss %.4f (%.0f utt/s)", epoch, self.step,
                         running / seen, seen / (time.time() - start))
        dist.barrier()
        return running / max(seen, 1)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        right = torch.zeros(2)
        for x, y in self.dev_stream:
            guess = self.model.module(x).argmax(-1)
            right[0] += (guess == y).sum()
            right[1] += len(y)
        dist.all_reduce(right)
        return (right[0] / right[1]).item()

    def save(self, root, epoch, acc):
        if self.rank == 0:
            torch.save({"model": self.model.module.state_dict(), "optim": self.opt.state_dict(),
                        "epoch": epoch, "acc": acc}, root / "last.pt")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--batch-size", type=int, default=Config.batch_size)
    ap.add_argument("--lr", type=float, default=Config.lr)
    args = ap.parse_args()
    cfg = Config(epochs=args.epochs, batch_size=args.batch_size, lr=args.lr)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"%(asctime)s r{rank} %(message)s")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    root = shared_dir(rank)
    if rank == 0:
        write_split(root, "train", [72, 64, 88, 56, 80, 72, 64, 96], seed=1)
        write_split(root, "dev", [24, 24, 24], seed=2)
    dist.barrier()
    trainer = Trainer(cfg, root, rank, world)
    for epoch in range(cfg.epochs):
        loss = trainer.train_epoch(epoch)
        acc = trainer.evaluate()
        log.info("epoch %d done: train loss %.4f dev acc %.3f", epoch, loss, acc)
        trainer.save(root, epoch, acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
