"""Small convolutional classifier under noisy labels with m-SAM."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from sam import MSAM

log = logging.getLogger("yarrow")


def shapes(n, seed, noise=0.0, side=14, classes=6):
    proto = torch.nn.functional.interpolate(
        torch.randn(classes, 1, 5, 5, generator=torch.Generator().manual_seed(70)), size=side, mode="bilinear")
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    x = proto[y] + 1.0 * torch.randn(n, 1, side, side, generator=g)
    flip = torch.rand(n, generator=g) < noise
    y = torch.where(flip, torch.randint(0, classes, (n,), generator=g), y)
    return TensorDataset(x, y)


def build(ch=24, classes=6):
    return nn.Sequential(
        nn.Conv2d(1, ch, 3, padding=1), nn.GroupNorm(4, ch), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(ch, 2 * ch, 3, padding=1), nn.GroupNorm(4, 2 * ch), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(8 * ch, classes))


@torch.no_grad()
def accuracy(net, data, rank, world):
    net.eval()
    x, y = data.tensors
    hit = sum((net(xb).argmax(1) == yb).sum() for xb, yb in zip(x[rank::world].split(256), y[rank::world].split(256)))
    dist.all_reduce(hit)
    net.train()
    return hit.item() / len(data)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--rho", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    train, test = shapes(3072, seed=1, noise=0.25), shapes(1024, seed=2)
    sampler = DistributedSampler(train, seed=10)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    torch.manual_seed(5)
    model = DDP(build())
    base = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(base, args.epochs * len(loader))
    sam = MSAM(model.parameters(), base, args.rho)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            with model.no_sync():
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            sam.climb()
            F.cross_entropy(model(x), y).backward()
            sam.descend()
            sched.step()
            total += loss.detach()
        acc = accuracy(model.module, test, rank, world)
        log.info("epoch %d loss (rank 0) %.4f clean test accuracy %.3f", epoch, total.item() / len(loader), acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
