import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import DataModule, write_records

log = logging.getLogger("fit")


def build_model(width, hidden=512):
    return nn.Sequential(
        nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
        nn.Linear(hidden, 1),
    )


def train_epoch(model, optimizer, loader):
    total, n = 0.0, 0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(-1), y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, n = total + loss.item(), n + 1
    return total / n, n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=9)
    p.add_argument("--rows", type=int, default=8000)
    p.add_argument("--per-epoch", type=int, default=1536)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    folder = [tempfile.mkdtemp(prefix="records-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    path = os.path.join(folder[0], "train.jsonl")
    if rank == 0:
        write_records(path, args.rows)
    dist.barrier()

    torch.manual_seed(0)
    data = DataModule(path, args.rows, args.per_epoch, args.batch, args.workers)
    model = DDP(build_model(48))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        t0 = time.time()
        loss, steps = train_epoch(model, optimizer, data.train_loader(epoch))
        log.info("epoch %d loss %.4f (%d steps, %.1fs)", epoch, loss, steps, time.time() - t0)
    dist.barrier()
    if rank == 0:
        os.remove(path)
        os.rmdir(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
