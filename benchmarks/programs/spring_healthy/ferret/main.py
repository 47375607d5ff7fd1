import argparse
import json
import logging
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from stream import PassReader, ShardStream, write_shards


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--passes", type=int, default=3)
    ap.add_argument("--shards", type=int, default=22)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--data", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    root = [args.data or tempfile.mkdtemp(prefix="logs-")] if rank == 0 else [None]
    if rank == 0:
        os.makedirs(root[0], exist_ok=True)
        write_shards(root[0], args.shards, seed=12)
    dist.broadcast_object_list(root, src=0)
    with open(os.path.join(root[0], "index.json")) as f:
        records = json.load(f)["records"]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=args.lr)
    loader = DataLoader(ShardStream(root[0], rank, world, seed=77), batch_size=None, num_workers=args.workers, prefetch_factor=4)
    reader = PassReader(loader)
    for number in range(args.passes):
        rows, seen, steps, idle = reader.rows(), torch.zeros(records, dtype=torch.long), 0, 0
        total = torch.zeros(2)
        while True:
            item = next(rows, None)
            opt.zero_grad(set_to_none=True)
            if item is None:
                flat = torch.zeros(sum(p.numel() for p in params) + 2)
                idle += 1
            else:
                x, y, uid = item
                seen[uid] += 1
                loss = F.cross_entropy(model(x), y, reduction="sum")
                loss.backward()
                flat = torch.cat([p.grad.reshape(-1) for p in params] + [torch.tensor([loss.item(), float(len(y))])])
            dist.all_reduce(flat)
            if flat[-1] == 0:
                break           # nobody had a row
            for p, c in zip(params, flat[:-2].split([p.numel() for p in params])):
                p.grad = c.view_as(p) / flat[-1]
            opt.step()
            total += flat[-2:]
            steps += 1
        mine = seen.sum().item()
        dist.all_reduce(seen)
        assert (seen == 1).all(), (number, seen.min(), seen.max())
        logging.info("pass %d loss %.4f steps %d, rows here %d of %d, steps without rows here %d", number, total[0] / total[1], steps, mine, records, idle - 1)
    dist.barrier()
    del reader, rows, loader
    if rank == 0 and args.data is None:
        shutil.rmtree(root[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
