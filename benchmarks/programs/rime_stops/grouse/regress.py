import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from reader import ShardReader
from stations import ensure_tables


class Net(nn.Module):
    def __init__(self, sensors=20, hidden=512):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(sensors, hidden), nn.SiLU(),
                                 nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.seq(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default="tables")
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        ensure_tables(args.data, world)
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    reader = ShardReader(os.path.join(args.data, f"station{rank}.csv"), args.batch_size, seed=rank)

    for epoch in range(args.epochs):
        began, total, n = time.time(), 0.0, 0
        for x, y in reader.epoch(epoch):
            loss = F.huber_loss(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.item()
            n += 1
        mean = torch.tensor(total / n)
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: huber {mean.item() / world:.4f}, {n} batches, "
                  f"{time.time() - began:.1f}s", flush=True)
            torch.save(model.module.state_dict(), "regress.pt")

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
