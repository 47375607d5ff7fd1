"""Decentralised SGD on tabular data; neighbours only, exchange overlapped with backward."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from gossip import OnePeerGossip


def make_data(n, d=40, classes=6):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(n, d, generator=g)
    w1 = torch.randn(d, 64, generator=g) / d ** 0.5
    w2 = torch.randn(64, classes, generator=g)
    y = (torch.tanh(x @ w1 * 2) @ w2 + 0.3 * torch.randn(n, classes, generator=g)).argmax(1)
    return x, y


def mlp(d, classes, width=192):
    return nn.Sequential(
        nn.Linear(d, width), nn.GELU(), nn.LayerNorm(width),
        nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width),
        nn.Linear(width, classes))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="[%(asctime)s] %(message)s")
    log = logging.getLogger("basalt")

    x, y = make_data(14_336)
    train, test = TensorDataset(x[:12_288], y[:12_288]), (x[12_288:], y[12_288:])
    sampler = DistributedSampler(train, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)

    torch.manual_seed(1234)
    model = mlp(40, 6)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    mixer = OnePeerGossip(model.parameters())

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for xb, yb in loader:
            mixer.start()
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            mixer.finish()
            opt.step()
            sched.step()
            running += loss.detach()
        log.info("epoch %d rank-0 train loss %.4f", epoch, running.item() / len(loader))

    spread = mixer.consensus()
    model.eval()
    with torch.no_grad():
        xt, yt = test[0][rank::world], test[1][rank::world]
        stats = torch.stack([(model(xt).argmax(1) == yt).sum(), torch.tensor(len(yt))]).float()
    dist.all_reduce(stats)
    log.info("consensus distance before averaging %.2e, test accuracy %.3f", spread.item(), (stats[0] / stats[1]).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
