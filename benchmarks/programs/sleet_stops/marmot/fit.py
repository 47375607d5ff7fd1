"""Image classifier reading from an object store, with fetches in flight."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from remote import Ahead, Bucket


class Res(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(w, w, 3, padding=1), nn.GroupNorm(4, w), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1))

    def forward(self, x):
        return torch.relu(x + self.f(x))


def resnet(w=16, classes=5):
    return nn.Sequential(nn.Conv2d(3, w, 3, padding=1), Res(w), nn.MaxPool2d(2), Res(w), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(w, classes))


class Fit:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(9)
        self.net = DDP(resnet())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        # the second site sits behind the slow line
        self.bucket = Bucket(self.rank, 0.02 if self.rank == 0 else 0.35)

    def epoch(self, e):
        keys = range(self.rank + 1000 * e, self.args.objects + 1000 * e, self.world)
        source = Ahead(self.bucket, keys)
        for x, y in source:
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
        failed = [None] * self.world
        dist.all_gather_object(failed, source.failed)
        if self.rank == 0:
            logging.info("epoch %d loss %.3f, fetches asked for again %s", e, loss.item(), failed)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--objects", type=int, default=60)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    dist.init_process_group("gloo")
    args = ap.parse_args()
    fit = Fit(args)
    for e in range(args.epochs):
        fit.epoch(e)
    dist.barrier()
    dist.destroy_process_group()
