"""Leaf-type classification on small image tiles (DDP)."""
import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split


def set_seed(seed, process_index):
    seed = seed + process_index * 12345
    random.seed(seed)
    np.random.seed(seed % (2**32))
    torch.manual_seed(seed)


class LeafTiles(Dataset):
    """Synthetic tiles: each class is an oriented texture with pixel noise."""

    def __init__(self, num_items, num_classes=8, size=24, augment=True):
        rng = np.random.RandomState(77)
        yy, xx = np.mgrid[0:size, 0:size] / size
        self.labels = rng.randint(0, num_classes, num_items)
        angle = self.labels * np.pi / num_classes
        freq = 5 + rng.rand(num_items) * 3
        phase = rng.rand(num_items) * 6.28
        wave = np.cos(angle)[:, None, None] * xx + np.sin(angle)[:, None, None] * yy
        img = np.sin(freq[:, None, None] * 6.28 * wave + phase[:, None, None])
        img = img[:, None] + rng.randn(num_items, 3, size, size) * 1.6
        self.images = img.astype(np.float32)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        x = torch.from_numpy(self.images[i])
        if self.augment:
            dy, dx = np.random.randint(-2, 3, 2)
            x = torch.roll(x, (int(dy), int(dx)), (1, 2))
        return x, int(self.labels[i])


class TileNet(nn.Module):
    def __init__(self, num_classes=8, width=24):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())
        self.stage1 = nn.Sequential(nn.Conv2d(width, width * 2, 3, 2, 1), nn.GroupNorm(4, width * 2), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(width * 2, width * 2, 3, 2, 1), nn.GroupNorm(4, width * 2), nn.ReLU())
        self.head = nn.Linear(width * 2, num_classes)

    def forward(self, x):
        x = self.stage2(self.stage1(self.stem(x)))
        return self.head(x.mean((2, 3)))


def make_dataset(args):
    full = LeafTiles(args.num_items)
    n_val = int(len(full) * args.val_ratio)
    split_gen = torch.Generator().manual_seed(args.seed)
    train_set, val_set = random_split(full, [len(full) - n_val, n_val], generator=split_gen)
    return train_set, val_set


def make_loader(ds, args, shuffle):
    sampler = DistributedSampler(ds, shuffle=shuffle, seed=args.seed, drop_last=shuffle)
    return DataLoader(ds, batch_size=args.batch_size, sampler=sampler, drop_last=shuffle), sampler


@torch.no_grad()
def validate(model, loader):
    model.eval()
    stat = torch.zeros(3, dtype=torch.float64)
    for x, y in loader:
        logits = model(x)
        stat[0] += F.cross_entropy(logits, y, reduction="sum").item()
        stat[1] += (logits.argmax(1) == y).sum().item()
        stat[2] += y.numel()
    dist.all_reduce(stat)
    model.train()
    return (stat[0] / stat[2]).item(), (stat[1] / stat[2]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--num-items", type=int, default=2560)
    ap.add_argument("--val-ratio", type=float, default=0.2)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=1234)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    set_seed(args.seed, rank)

    train_set, val_set = make_dataset(args)
    train_loader, train_sampler = make_loader(train_set, args, shuffle=True)
    val_loader, _ = make_loader(val_set, args, shuffle=False)

    model = DDP(TileNet())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(train_loader))

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        running = 0.0
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            running += loss.item()
        val_loss, val_acc = validate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch} train {running / len(train_loader):.4f} val {val_loss:.4f} acc {val_acc:.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
