"""Machines of different speed: each rank takes a batch as large as suits it, gradients are weighted."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("hetero")


class Share:
    """Which rows of a global batch belong to whom; shares follow the measured speed."""

    def __init__(self, total, world):
        self.total = total
        self.sizes = [total // world] * world
        self.sizes[0] += total - sum(self.sizes)

    def rows(self, rank, perm):
        lo = sum(self.sizes[:rank])
        return perm[lo:lo + self.sizes[rank]]

    def rebalance(self, rate):
        rates = [torch.zeros(1) for _ in self.sizes]
        dist.all_gather(rates, torch.tensor([rate]))
        total = sum(float(r) for r in rates)
        sizes = [max(4, int(self.total * float(r) / total)) for r in rates]
        sizes[sizes.index(max(sizes))] += self.total - sum(sizes)
        self.sizes = sizes


def fake_compute(rank, rows):
    time.sleep(rows * (0.0002, 0.0002, 0.0006)[rank % 3])


def weighted_mean_grads(model, n, total):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()]) * (n / total)
    dist.all_reduce(flat)
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=1536)
    ap.add_argument("--batch", type=int, default=96, help="global batch")
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(6)
    x = torch.randn(args.rows, 12, generator=g)
    y = (x[:, :4] * x[:, 4:8]).sum(1, keepdim=True).tanh()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    share = Share(args.batch, world)
    order = torch.Generator().manual_seed(1)

    for epoch in range(args.epochs):
        spent, done = 0.0, 0
        for perm in torch.randperm(args.rows, generator=order).split(args.batch):
            rows = share.rows(rank, perm)
            begin = time.perf_counter()
            loss = F.mse_loss(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            fake_compute(rank, len(rows))
            spent += time.perf_counter() - begin
            done += len(rows)
            weighted_mean_grads(model, len(rows), len(perm))
            opt.step()
        if rank == 0:
            log.info("epoch %d loss %.4f shares %s", epoch, loss.item(), share.sizes)
        share.rebalance(done / spent)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
