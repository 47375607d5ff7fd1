"""Second-order training of an image-patch classifier."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from kfac import KFAC

log = logging.getLogger("marl")


def patches(n, side=12, classes=8):
    g = torch.Generator().manual_seed(77)
    proto = torch.randn(classes, side, side, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    x = proto[y]
    dx = torch.randint(0, 3, (n,), generator=g)
    x = torch.stack([torch.roll(i, int(s), 1) for i, s in zip(x, dx)])
    x = x * torch.linspace(0.2, 3.0, side) + 2.5 * torch.randn(n, side, side, generator=g)
    return TensorDataset(x.flatten(1), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--width", type=int, default=128)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    data = patches(8192)
    sampler = DistributedSampler(data, seed=9)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    torch.manual_seed(13)
    w = args.width
    net = nn.Sequential(nn.Linear(144, w), nn.Tanh(), nn.Linear(w, w), nn.Tanh(), nn.Linear(w, w), nn.Tanh(), nn.Linear(w, 8))
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=3e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    pre = KFAC(net)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            pre.precondition(opt.param_groups[0]["lr"])
            opt.step()
            sched.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        log.info("epoch %d loss %.4f", epoch, total.item() / len(loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
