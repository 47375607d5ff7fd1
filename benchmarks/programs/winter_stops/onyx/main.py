"""Local training with overlapped outer averaging, three workers."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from outer import DelayedOuter

log = logging.getLogger("local")


class Net(nn.Module):
    def __init__(self, dim, hidden=320, classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.body(x)


def batches(rank, dim, size):
    g = torch.Generator().manual_seed(60 + rank)
    w = torch.randn(dim, 10, generator=torch.Generator().manual_seed(9))
    while True:
        x = torch.randn(size, dim, generator=g)
        yield x, (x @ w).argmax(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--inner", type=int, default=25)
    p.add_argument("--delay", type=int, default=8, help="inner steps between launching and applying an average")
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    if args.delay >= args.inner:
        raise SystemExit("delay has to be shorter than a round")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(0)
    net = Net(args.dim)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    outer = DelayedOuter(net.parameters())
    source = batches(rank, args.dim, args.batch)
    start = time.time()

    for rnd in range(args.rounds):
        for inner in range(args.inner):
            if outer.pending is not None and inner == args.delay:
                outer.apply()
            x, y = next(source)
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        outer.launch()
        log.info("round %2d  local loss %.4f  %.1fs", rnd, loss.item(), time.time() - start)

    outer.finish()
    x, y = next(batches(100, args.dim, 2000))
    with torch.no_grad():
        acc = (net(x).argmax(1) == y).float().mean()
    log.info("accuracy of the averaged model %.3f", acc.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
