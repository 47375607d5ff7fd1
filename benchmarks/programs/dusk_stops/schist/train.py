"""Image classifier over record shards, launched with mp.spawn.   python train.py --world-size 3"""
import argparse
import logging
import os
import socket
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from records import ShardReader, write_shards
from trainer import Trainer


def convnet(classes=10):
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(block(3, 12), block(12, 24), block(24, 32), nn.Flatten(), nn.Linear(32 * 16, classes))


def worker(rank, args, port, root):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank{rank} %(levelname)s %(message)s")
    dist.init_process_group("gloo", rank=rank, world_size=args.world_size)
    if rank == 0:
        write_shards(root, args.world_size, args.records)
    dist.barrier()

    torch.manual_seed(args.seed)
    model = DDP(convnet())
    reader = ShardReader(os.path.join(root, f"shard-{rank:03d}.rec"), args.batch_size)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9))
    for epoch in range(args.epochs):
        trainer.train_epoch(reader, epoch)
        stats = trainer.summarize()
        if rank == 0:
            logging.info("epoch %d: %s", epoch, stats)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(root, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--world-size", type=int, default=3)
    ap.add_argument("--records", type=int, default=800, help="records per shard")
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    root = args.out or tempfile.mkdtemp(prefix="shards_")
    os.makedirs(root, exist_ok=True)
    mp.spawn(worker, args=(args, free_port(), root), nprocs=args.world_size)
