"""Streaming classifier training from on-disk shards."""
import argparse
import logging
import os
import random
import shutil
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import ShardedStream, write_shards

log = logging.getLogger("stream")


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Net(nn.Module):
    def __init__(self, dim, classes, dropout=0.2):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(128, classes)
        )

    def forward(self, x):
        return self.layers(x)


def augment(x):
    return x + 0.1 * torch.randn_like(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=os.path.join(tempfile.gettempdir(), f"sites-{os.environ.get('MASTER_PORT', '0')}"))
    p.add_argument("--num_shards", type=int, default=24)
    p.add_argument("--per_shard", type=int, default=96)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=13)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seed_everything(args.seed + rank)

    if rank == 0:
        shutil.rmtree(args.data, ignore_errors=True)
        write_shards(args.data, args.num_shards, args.per_shard, dim=24, classes=6, seed=args.seed)
    dist.barrier()

    stream = ShardedStream(args.data, rank, world)
    loader = DataLoader(stream, batch_size=args.batch_size, num_workers=0, drop_last=True)
    model = DDP(Net(24, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        stats = torch.zeros(3)
        for x, y in loader:
            logits = model(augment(x))
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            stats += torch.tensor([loss.item() * len(y), (logits.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(stats)
        if rank == 0:
            log.info("epoch %d samples %d loss %.4f acc %.4f", epoch, int(stats[2]), stats[0] / stats[2],
                     stats[1] / stats[2])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(args.data, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
