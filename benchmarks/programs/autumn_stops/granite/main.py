import argparse
import logging
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from board import ReadyBoard
from bucket import Bucket, CorruptShard, Link, read_verified

log = logging.getLogger("train")


class ShardFeed:
    def __init__(self, bucket, board, link, rank, scratch, retries=3):
        self.bucket, self.board, self.link = bucket, board, link
        self.rank = rank
        self.scratch = Path(scratch)
        self.retries = retries

    def fetch(self, epoch):
        local = self.scratch / f"e{epoch}.pt"
        crc = self.bucket.checksum(epoch, self.rank)
        for attempt in range(self.retries):
            self.link.copy(self.bucket.shard(epoch, self.rank), local)
            self.board.announce(epoch)
            try:
                return read_verified(local, crc)
            except CorruptShard as err:
                log.warning("attempt %d: %s", attempt + 1, err)
                time.sleep(0.5)
        raise RuntimeError(f"epoch {epoch}: shard could not be fetched")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=14)
    p.add_argument("--rows", type=int, default=1536)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s %(message)s")
    box = [tempfile.mkdtemp(prefix="granite-bucket-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    bucket = Bucket(box[0])
    board = ReadyBoard(world_size)
    feed = ShardFeed(bucket, board, Link(rank), rank, tempfile.mkdtemp(prefix=f"granite-{rank}-"))

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(args.dim, 192), nn.GELU(), nn.Linear(192, 192), nn.GELU(), nn.Linear(192, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        if rank == 0:
            bucket.stage(epoch, world_size, args.rows, args.dim)
        dist.barrier()
        shard = feed.fetch(epoch)
        board.wait(epoch)
        if rank == 0 and epoch > 0:
            bucket.drop(epoch - 1)
        total = torch.zeros(1)
        for x, y in zip(shard["x"].split(args.batch_size), shard["y"].split(args.batch_size)):
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach() * len(x)
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d mse %.5f", epoch, total.item() / args.rows / world_size)

    dist.barrier()
    if rank == 0:
        log.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
