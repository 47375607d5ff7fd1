import argparse
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, RandomSampler

from store import PackedFields, assign, write_store

PART_SIZES = [120, 120] + [30] * 8


class AngleNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(
            nn.AvgPool2d(3),
            nn.Conv2d(1, width, 5, stride=2), nn.GroupNorm(2, width), nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2), nn.GroupNorm(2, width * 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        )
        self.head = nn.Linear(width * 2 * 9, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Trainer:
    def __init__(self, args, folder):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.net = AngleNet()
        self.model = DDP(self.net)
        parts = assign(PART_SIZES, self.world)[self.rank]
        self.data = PackedFields(folder, parts, PART_SIZES)
        self.generator = torch.Generator().manual_seed(args.seed * 31 + self.rank)
        self.loader = DataLoader(
            self.data, batch_size=args.batch_size, sampler=RandomSampler(self.data, generator=self.generator)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=args.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, args.epochs * len(self.loader)
        )

    def epoch(self, number):
        began, rows, total = time.time(), 0, 0.0
        for fields, target in self.loader:
            loss = (self.model(fields) - target).pow(2).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            total += loss.item() * len(target)
            rows += len(target)
        stats = torch.tensor([total, float(rows)])
        dist.all_reduce(stats)
        if self.rank == 0:
            rate = stats[1].item() / (time.time() - began)
            print(f"epoch {number} loss {stats[0] / stats[1]:.4f} {rate:.0f} rows/s", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    box = [None]
    if dist.get_rank() == 0:
        box = [tempfile.mkdtemp(prefix="fields_")]
        write_store(box[0], PART_SIZES)
    dist.broadcast_object_list(box, src=0)
    trainer = Trainer(args, box[0])
    for number in range(args.epochs):
        trainer.epoch(number)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(box[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
