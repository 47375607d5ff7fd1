import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import ShardStream, collate, write_shard

logger = logging.getLogger("stream")


def flags():
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=int, default=12)
    p.add_argument("--per-shard", type=int, default=60)
    p.add_argument("--dim", type=int, default=24)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


class ResidualMLP(nn.Module):
    def __init__(self, dim, width=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h).squeeze(-1)


class Averager:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value, n=1):
        self.total += value * n
        self.count += n

    def everywhere(self):
        t = torch.tensor([self.total, float(self.count)], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item()


def train_one_epoch(model, loader, opt, sched, loss_fn):
    model.train()
    avg = Averager()
    for x, y in loader:
        loss = loss_fn(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        avg.add(loss.item(), len(y))
    return avg.everywhere()


@torch.no_grad()
def validate(model, args, rank, world):
    model.eval()
    rows = write_shard(10 ** 5, 240, args.dim)[rank::world]
    x, y = collate(rows)
    avg = Averager()
    avg.add((model.module(x) - y).pow(2).mean().item(), len(y))
    return avg.everywhere()


def main():
    args = flags()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    stream = ShardStream(args.shards, args.per_shard, args.dim, rank, world, seed=args.seed)
    loader = DataLoader(stream, args.batch, num_workers=args.workers, collate_fn=collate)
    model = DDP(ResidualMLP(args.dim))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    per_epoch = args.shards * args.per_shard // (world * args.batch)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * per_epoch)
    for epoch in range(args.epochs):
        t0 = time.time()
        stream.set_epoch(epoch)
        loss = train_one_epoch(model, loader, opt, sched, nn.MSELoss())
        val = validate(model, args, rank, world)
        logger.info("epoch %d loss %.4f val %.4f lr %.2e (%.1fs)", epoch, loss, val,
                    sched.get_last_lr()[0], time.time() - t0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
