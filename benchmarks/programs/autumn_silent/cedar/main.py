"""Image classification with gradient accumulation under DDP."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import BlobImages
from engine import AccumulatingEngine


def build_model():
    def stage(cin, cout):
        return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(stage(3, 16), stage(16, 32), nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10))


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=9)
    p.add_argument("--batch_size", type=int, default=16)
    p.add_argument("--accum_steps", type=int, default=4)
    p.add_argument("--train_size", type=int, default=832)
    p.add_argument("--val_size", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--max_norm", type=float, default=2.0)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)

    train_set = BlobImages(args.train_size, seed=args.seed)
    val_set = BlobImages(args.val_size, seed=args.seed + 1)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=64, sampler=DistributedSampler(val_set, shuffle=False))

    model = DDP(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    updates = args.epochs * -(-len(loader) // args.accum_steps)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    engine = AccumulatingEngine(model, optimizer, scheduler, args.accum_steps, args.max_norm)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        engine.train_epoch(loader, epoch)
        acc = engine.evaluate(val_loader)
        if dist.get_rank() == 0:
            logging.info("epoch %d val acc %.4f", epoch, acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
