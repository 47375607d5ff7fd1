"""Click-through training from event shards read as a stream."""
import argparse
import logging
import random
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

log = logging.getLogger("ctr")


class ShardReader:
    """Stands for a bucket with `count` objects, each a block of events."""

    def __init__(self, count, rows, fields, buckets, seed):
        self.count, self.rows, self.fields, self.buckets, self.seed = count, rows, fields, buckets, seed
        g = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(fields, buckets, generator=g)

    def read(self, key):
        g = torch.Generator().manual_seed(self.seed + 13 * (key + 1))
        drift = 0.4 * torch.sin(torch.tensor(key / 3.0))
        ids = torch.randint(0, self.buckets, (self.rows, self.fields), generator=g)
        score = self.weight[torch.arange(self.fields), ids].sum(1) / self.fields ** 0.5 + drift
        label = (torch.rand(self.rows, generator=g) < torch.sigmoid(2 * score)).float()
        yield from zip(ids, label)


class EventStream(IterableDataset):
    def __init__(self, reader, run_name, rank, world, buffer=64):
        self.reader, self.run_name = reader, run_name
        self.rank, self.world, self.buffer = rank, world, buffer
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def shard_order(self):
        rng = random.Random(zlib.crc32(f"{self.run_name}/{self.epoch}".encode()))
        keys = list(range(self.reader.count))
        rng.shuffle(keys)
        return keys

    def __iter__(self):
        mine = self.shard_order()[self.rank::self.world]
        rng = random.Random(1_000_003 * self.epoch + self.rank)
        held = []
        for key in mine:
            for event in self.reader.read(key):
                if len(held) < self.buffer:
                    held.append(event)
                    continue
                j = rng.randrange(self.buffer)
                yield held[j]
                held[j] = event
        rng.shuffle(held)
        yield from held


class FactorizationMachine(nn.Module):
    def __init__(self, fields, buckets, rank_dim):
        super().__init__()
        self.fields, self.buckets = fields, buckets
        self.bias = nn.Parameter(torch.zeros(1))
        self.linear = nn.Embedding(fields * buckets, 1)
        self.latent = nn.Embedding(fields * buckets, rank_dim)
        nn.init.normal_(self.latent.weight, std=0.02)
        nn.init.zeros_(self.linear.weight)

    def forward(self, ids):
        flat = ids + torch.arange(self.fields) * self.buckets
        v = self.latent(flat)
        pair = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.bias + self.linear(flat).sum((1, 2)) + pair


def run(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    reader = ShardReader(args.shards, args.rows, 6, 40, args.seed)
    stream = EventStream(reader, args.run_name, rank, world)
    loader = DataLoader(stream, batch_size=args.batch_size, drop_last=True)
    model = DDP(FactorizationMachine(6, 40, 8))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    lossf = nn.BCEWithLogitsLoss()

    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        stats = torch.zeros(3, dtype=torch.float64)
        for ids, label in loader:
            opt.zero_grad()
            logit = model(ids)
            loss = lossf(logit, label)
            loss.backward()
            opt.step()
            hit = ((logit > 0).float() == label).sum().item()
            stats += torch.tensor([loss.item() * len(label), hit, len(label)])
        dist.all_reduce(stats)
        if rank == 0:
            log.info("epoch %d logloss %.4f acc %.3f events %d", epoch, stats[0] / stats[2],
                     stats[1] / stats[2], int(stats[2]))
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), args.out / f"{args.run_name}.pt")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run-name", default="ctr-daily")
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--shards", type=int, default=16)
    ap.add_argument("--rows", type=int, default=128)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--seed", type=int, default=9)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    try:
        run(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
