"""Linear probe over pre-extracted features, streamed shard by shard."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from dataset import ShardStream, ShardView
from shards import prepare

log = logging.getLogger("probe")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=int, default=2)
    p.add_argument("--rows", type=int, default=12000)
    p.add_argument("--holdout", type=int, default=1200)
    p.add_argument("--dim", type=int, default=192)
    p.add_argument("--batch", type=int, default=120)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--cache", default=f"/tmp/probe-{os.environ.get('MASTER_PORT', os.getpid())}")
    return p.parse_args()


@torch.no_grad()
def validate(net, loader):
    hits = torch.zeros(2)
    for x, y in loader:
        hits += torch.tensor([(net(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(hits)
    return (hits[0] / hits[1]).item()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    paths = prepare(args.cache, rank, args.rows, args.dim, args.shards)
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(args.dim, 256), nn.ReLU(), nn.Linear(256, 10)))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    stream = ShardStream(paths)
    cut = args.rows - args.holdout
    options = dict(batch_size=args.batch, num_workers=args.workers, drop_last=True)
    train_loader = DataLoader(ShardView(stream, 0, cut), shuffle=True, **options)
    val_loader = DataLoader(ShardView(stream, cut, args.rows), **options)

    step = 0
    for part in range(len(stream)):
        stream.advance(part)
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 20 == 0 and rank == 0:
                log.info("shard %d step %3d loss %.4f", part, step, loss.item())
        stream.prefetch()  # the next shard is decoded while this one is being validated
        accuracy = validate(model.module, val_loader)
        if rank == 0:
            log.info("shard %d done, held-out accuracy %.3f", part, accuracy)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
