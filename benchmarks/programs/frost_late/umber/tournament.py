"""Decentralised averaging on a square: rows first, columns from the second half on."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

from lazy import LazyGroups

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("square")


def partner(rank, phase):
    return rank ^ 1 if phase == "row" else rank ^ 2


class Node:
    def __init__(self, lr):
        self.rank = dist.get_rank()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)
        self.gen = torch.Generator().manual_seed(60 + self.rank)
        self.groups = LazyGroups()

    def local_step(self):
        x = torch.randn(16, 4, generator=self.gen)
        loss = nn.functional.mse_loss(self.net(x), x.prod(1, keepdim=True))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def mix(self, phase):
        group = self.groups.get((self.rank, partner(self.rank, phase)))
        for p in self.net.parameters():
            dist.all_reduce(p, group=group)
            p.div_(2)

    def checksum(self):
        return sum(p.double().sum().item() for p in self.net.parameters())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=20)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    node = Node(lr=0.05)
    for r in range(a.rounds):
        loss = node.local_step()
        node.mix("row")
        if r >= a.rounds // 2:
            node.mix("col")
    log.info("rank %d loss %.4f sum %.7f", node.rank, loss, node.checksum())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
