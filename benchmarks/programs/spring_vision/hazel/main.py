"""Image classification from tar shards."""
import argparse
import glob
import logging
import os
import random
import shutil
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import ShardDataset, write_shards

log = logging.getLogger("train")


def random_seed(seed=42, rank=0):
    torch.manual_seed(seed + rank)
    np.random.seed(seed + rank)
    random.seed(seed + rank)
    return seed + rank


class SmallNet(nn.Module):
    def __init__(self, classes=16, width=24):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.GELU(),
            nn.Flatten(), nn.Linear(2 * width * 16, 128), nn.GELU(), nn.Linear(128, classes))

    def forward(self, x):
        return self.f(x)


def create_loader(urls, args, seed, rank, world):
    data = ShardDataset(urls, rank, world, seed=seed)
    return data, DataLoader(data, batch_size=args.batch_size, num_workers=args.workers, drop_last=True)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=int, default=32)
    p.add_argument("--per-shard", type=int, default=64)
    p.add_argument("--batch-size", "-b", type=int, default=32)
    p.add_argument("--workers", "-j", type=int, default=2)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=42)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    random_seed(args.seed, rank)

    root = [tempfile.mkdtemp(prefix="shards-")] if rank == 0 else [None]
    if rank == 0:
        write_shards(root[0], args.shards, args.per_shard)
    dist.broadcast_object_list(root, src=0)
    urls = sorted(glob.glob(os.path.join(root[0], "train-*.tar")))
    train_urls, val_urls = urls[:-2 * world], urls[-2 * world:]
    train_urls = train_urls[:len(train_urls) // (world * args.workers) * world * args.workers]

    data, loader = create_loader(train_urls, args, args.seed, rank, world)
    val = DataLoader(ShardDataset(val_urls, rank, world, seed=0), batch_size=64)
    model = DDP(SmallNet())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)

    for epoch in range(args.epochs):
        data.set_epoch(epoch)
        model.train()
        t0, seen, total = time.time(), 0, 0.0
        for x, y, _ in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            seen += len(y)
            total += loss.item() * len(y)
        model.eval()
        hit = torch.zeros(2)
        with torch.no_grad():
            for x, y, _ in val:
                hit += torch.tensor([(model.module(x).argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(hit)
        if rank == 0:
            log.info("epoch %d: %d samples, loss %.4f, val top1 %.2f%% (%.1fs)", epoch, seen * world, total / seen,
                     100 * hit[0] / hit[1], time.time() - t0)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(root[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
