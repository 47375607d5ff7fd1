import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import make_loader, make_set

logger = logging.getLogger("cls")


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    stat = torch.zeros(2, dtype=torch.float64)
    for x, y in loader:
        pred = model(x).argmax(1)
        stat[0] += (pred == y).sum()
        stat[1] += len(y)
    dist.all_reduce(stat)
    model.train()
    return stat[0].item() / stat[1].item(), int(stat[1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--val-size", type=int, default=40)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_loader = make_loader(make_set(390, 1), 13, train=True)
    val_loader = make_loader(make_set(a.val_size, 2), 8, train=False)
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(a.epochs):
        train_loader.sampler.set_epoch(epoch)
        for x, y in train_loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        acc, n = evaluate(model.module, val_loader)
        if dist.get_rank() == 0:
            logger.info("epoch %d val acc %.4f (%d samples)", epoch, acc, n)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
