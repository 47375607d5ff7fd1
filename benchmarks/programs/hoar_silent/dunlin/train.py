import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import JsonlStream, prepare_shards


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="shards")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-2)
    return p.parse_args()


def main():
    args = cli()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        prepare_shards(args.data)
    dist.barrier()
    torch.manual_seed(2)
    stream = JsonlStream(args.data)
    loader = DataLoader(stream, batch_size=args.batch_size, num_workers=args.workers)
    model = DDP(nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 3)))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs)
    seen = 0
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        model.train()
        stats = torch.zeros(2)
        for x, y in loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(y) * world
            stats += torch.tensor([loss.item() * len(y), len(y)])
        sched.step()
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} loss {stats[0] / stats[1]:.4f} samples {seen}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
