import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn

from loader import iterate
from storage import ShardStore


def sync_grads(model, world):
    flat = torch.cat([p.grad.view(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    off = 0
    for p in model.parameters():
        p.grad.copy_(flat[off:off + p.numel()].view_as(p))
        off += p.numel()


def run(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(args.dim, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    store = ShardStore(rank, args.shards, args.shard_size, args.dim)
    try:
        for epoch in range(args.epochs):
            running = 0.0
            for step, (x, y) in enumerate(iterate(store, args.batch_size)):
                opt.zero_grad()
                loss = nn.functional.smooth_l1_loss(model(x), y)
                loss.backward()
                sync_grads(model, world)
                opt.step()
                running += loss.item()
                if rank == 0 and step % 8 == 0:
                    logging.info("epoch %d step %d loss %.4f", epoch, step, running / (step + 1))
    finally:
        store.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--shards", type=int, default=4)
    p.add_argument("--shard-size", type=int, default=96)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--dim", type=int, default=10)
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"[rank {dist.get_rank()}] %(message)s")
    run(args)
    dist.barrier()
    logging.info("finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
