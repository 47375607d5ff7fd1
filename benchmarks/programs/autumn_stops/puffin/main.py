import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from archive import ReelDataset

log = logging.getLogger("archive")

SLOW = {1: 9.0, 9: 14.0, 12: 5.0}


def build_loader(rank, world_size, args):
    reels = list(range(args.reels))[rank::world_size]
    data = ReelDataset(reels, args.per_reel, mount_seconds=SLOW)
    return DataLoader(data, batch_size=args.batch_size, num_workers=1, prefetch_factor=2)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--reels", type=int, default=16)
    p.add_argument("--per-reel", type=int, default=512)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=0.02)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    loader = build_loader(rank, world_size, args)

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3)))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    seen = correct = 0
    fetched = time.time()
    for step, (x, y) in enumerate(loader):
        waited = time.time() - fetched
        if waited > 2:
            log.info("step %d: batch took %.1fs", step, waited)
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(x)
        correct += int((out.argmax(1) == y).sum())
        fetched = time.time()

    counts = torch.tensor([seen, correct])
    dist.all_reduce(counts)
    if rank == 0:
        log.info("%d records, running accuracy %.4f", counts[0], counts[1] / counts[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
