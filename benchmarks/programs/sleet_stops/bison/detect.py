"""Auto-encoder for machine vibration; hard samples of the whole job come again in the next epoch."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from board import Board


class AE(nn.Module):
    def __init__(self, width=64, code=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, code))
        self.dec = nn.Sequential(nn.Linear(code, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x):
        return self.dec(self.enc(x))


def vibration(n, width=64):
    g = torch.Generator().manual_seed(77)
    t = torch.arange(width) / 10
    f = 0.5 + 2 * torch.rand(n, 1, generator=g)
    return torch.sin(f * t) + 0.05 * torch.randn(n, width, generator=g)


def epoch_ids(n, again, epoch, rank, world):
    """The same list on all the ranks, cut evenly."""
    g = torch.Generator().manual_seed(epoch)
    ids = torch.cat([torch.randperm(n, generator=g), torch.tensor(again, dtype=torch.long)])
    return ids[: len(ids) // world * world][rank::world]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--samples", type=int, default=1600)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--bar", type=float, default=0.42)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    net = DDP(AE())
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    data = vibration(a.samples)
    board, again = Board(), []
    for epoch in range(a.epochs):
        for ids in epoch_ids(a.samples, again, epoch, rank, world).split(a.batch):
            x = data[ids]
            each = (net(x) - x).pow(2).mean(1)
            opt.zero_grad()
            each.mean().backward()
            opt.step()
            board.see(each.detach(), ids, a.bar)
        if not board.hard:
            logging.getLogger("detect").info("rank %d: nothing hard left in epoch %d", rank, epoch)
        again = board.close_epoch(epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
