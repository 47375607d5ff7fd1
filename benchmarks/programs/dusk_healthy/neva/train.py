"""Work stealing over data shards; Join keeps DDP going while some ranks have already run dry."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import ShardedStream, ShardQueue


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--shards", type=int, default=36)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    stream = ShardedStream(ShardQueue(args.shards))
    for epoch in range(args.epochs):
        stream.epoch = epoch
        # in-process loading: the counter must not be drawn ahead by workers
        loader = DataLoader(stream, args.batch_size)
        t0, steps, total, rows = time.time(), 0, 0.0, 0
        with Join([model], divide_by_initial_world_size=False):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                steps, total, rows = steps + 1, total + loss.item() * len(y), rows + len(y)
                if rank == world - 1:
                    time.sleep(0.02)           # the old node
        shares = [None] * world
        dist.all_gather_object(shares, stream.log)
        assert sorted(s for part in shares for s in part) == list(range(args.shards))
        stat = torch.tensor([total, float(rows)], dtype=torch.float64)
        dist.all_reduce(stat)
        print(f"rank {rank} epoch {epoch}: {len(stream.log)} shards, {steps} steps, {rows} of {int(stat[1])} rows, "
              f"mean loss {stat[0] / stat[1]:.4f}, {time.time() - t0:.1f}s", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
