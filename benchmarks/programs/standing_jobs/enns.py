"""Sites with different amounts of data train one model; who is through early joins passively."""
import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

log = logging.getLogger("sites")


@dataclass
class Config:
    site_rows: tuple = (1400, 980)
    features: int = 18
    batch: int = 20
    epochs: int = 2
    lr: float = 0.04
    remount_at: int = 1100
    remount_seconds: float = 8.5
    seed: int = 111


class Site(IterableDataset):
    """Reads one site's rows in order of arrival; the long site spans two volumes."""

    def __init__(self, cfg, index):
        self.cfg, self.index = cfg, index
        self.rows = cfg.site_rows[index]
        self.epoch = 0
        self.mounted = False
        g = torch.Generator().manual_seed(cfg.seed)
        self.w = torch.randn(cfg.features, generator=g)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _mount_second_volume(self):
        if not self.mounted:
            log.info("site %d: waiting for the second volume", self.index)
            time.sleep(self.cfg.remount_seconds)
            self.mounted = True

    def __iter__(self):
        g = torch.Generator().manual_seed(self.cfg.seed * 97 + self.index)
        x = torch.randn(self.rows, self.cfg.features, generator=g)
        y = (x @ self.w + 0.5 * torch.randn(self.rows, generator=g) > 0).float()
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.epoch))
        for n, i in enumerate(order.tolist()):
            if n == self.cfg.remount_at:
                self._mount_second_volume()
            yield x[i], y[i]


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 40), nn.GELU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def run_epoch(model, loader, opt):
    stats = torch.zeros(3, dtype=torch.float64)
    with model.join():
        for x, y in loader:
            out = model(x)
            loss = F.binary_cross_entropy_with_logits(out, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            stats += torch.tensor([loss.item() * len(y), ((out > 0) == (y > 0.5)).sum().item(),
                                   len(y)], dtype=torch.float64)
    return stats


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--remount-seconds", type=float, default=8.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, remount_seconds=args.remount_seconds)
    site = Site(cfg, rank)
    loader = DataLoader(site, cfg.batch)
    torch.manual_seed(cfg.seed)
    model = DDP(Model(cfg.features))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        site.set_epoch(epoch)
        mine = run_epoch(model, loader, opt)
        log.info("epoch %d: %d rows here", epoch, int(mine[2]))
        dist.all_reduce(mine)
        if rank == 0:
            log.info("epoch %d loss %.4f accuracy %.3f over %d rows", epoch, mine[0] / mine[2],
                     mine[1] / mine[2], int(mine[2]))
    sums = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, sum(p.detach().double().abs().sum() for p in model.parameters()).float())
    if rank == 0:
        log.info("weight sums %s", [round(s.item(), 5) for s in sums])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
