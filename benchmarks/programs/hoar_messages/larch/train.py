import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class ClickStream(IterableDataset):
    """Log files differ in length from host to host."""

    def __init__(self, rank, lengths):
        self.rank, self.length = rank, lengths[rank % len(lengths)]

    def __iter__(self):
        g = torch.Generator().manual_seed(50 + self.rank)
        for i in range(self.length):
            x = torch.randn(10, generator=g)
            if i % 17 == 3:
                continue  # bots
            yield x, (x[0] + x[1] > 0).float()


def train_one_epoch(model, opt, loader, rank, epoch, late):
    n, loss = 0, torch.zeros(())
    with Join([model, opt]):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            loss.backward()
            opt.step()
            n += 1
            if rank == 2 and epoch == 0 and n == 20:
                time.sleep(late)  # waits for its log to be rotated
    logging.info("epoch %d: %d steps, last loss %.4f", epoch, n, loss.item())
    return n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--lengths", type=int, nargs="+", default=[130, 90, 260])
    ap.add_argument("--late", type=float, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=5e-3)
    loader = DataLoader(ClickStream(rank, args.lengths), batch_size=args.batch_size)
    total = torch.zeros(1)
    for epoch in range(args.epochs):
        total += train_one_epoch(model, opt, loader, rank, epoch, args.late)
    dist.all_reduce(total)
    if rank == 0:
        logging.info("steps over all: %d", int(total))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
