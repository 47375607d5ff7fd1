import argparse
import logging
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from roles import Preparer, ShardReader, prefixed_store

log = logging.getLogger("train")


def train(args, root, store, group, rank, trainers):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(args.dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
    model = DDP(net, process_group=group)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    reader = ShardReader(root, store)
    for epoch in range(args.epochs):
        total, seen = torch.zeros(1), 0
        for s in range(args.shards):
            x, y = reader.read(s)
            x, y = x[rank::trainers], y[rank::trainers]
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch * 100 + s))
            for idx in order.split(args.batch_size):
                loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.detach() * len(idx)
                seen += len(idx)
        dist.all_reduce(total, group=group)
        if rank == 0:
            log.info("epoch %d loss %.4f", epoch, total.item() / (seen * trainers))
    dist.barrier(group=group)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--shards", type=int, default=8)
    p.add_argument("--rows", type=int, default=1024)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s %(message)s")
    trainers = world_size - 1
    group = dist.new_group(list(range(trainers)))
    box = [tempfile.mkdtemp(prefix="tulip-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    store = prefixed_store("shards")

    if rank == trainers:
        Preparer(box[0], args.shards, args.rows, args.dim).run(store)
        log.info("all shards written, leaving")
        dist.destroy_process_group()
        sys.exit(0)

    train(args, box[0], store, group, rank, trainers)
    if rank == 0:
        log.info("finished")
    dist.destroy_process_group(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
