"""Sensor regression with occasional corrupt readings; the job is rebuilt from its checkpoint between phases."""
import argparse
import gc
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from train_utils import Ema, StepGuard, restore, save

log = logging.getLogger("vetch")


def readings(n, d=24):
    g = torch.Generator().manual_seed(15)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, 16, generator=g) / d ** 0.5
    y = torch.tanh(x @ w).sum(1, keepdim=True) + 0.05 * torch.randn(n, 1, generator=g)
    bad = torch.randperm(n, generator=g)[:6]
    x[bad, 3] = float("inf")
    return TensorDataset(x, y)


class Run:
    def __init__(self, args, rank, world):
        self.rank = rank
        data = readings(12_288)
        self.sampler = DistributedSampler(data, seed=21)
        self.loader = DataLoader(data, batch_size=args.batch, sampler=self.sampler)
        torch.manual_seed(33)
        self.net = nn.Sequential(nn.Linear(24, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, args.lr, total_steps=args.epochs * len(self.loader))
        self.guard = StepGuard(self.net.parameters(), 1.0)
        self.ema = Ema(self.net) if rank == 0 else None
        self.epoch = 0

    def train_until(self, last):
        model = DDP(self.net)
        while self.epoch < last:
            self.sampler.set_epoch(self.epoch)
            total, used = torch.zeros(()), 0
            for x, y in self.loader:
                loss = F.mse_loss(model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                if self.guard.ok():
                    self.opt.step()
                    total += loss.detach()
                    used += 1
                    if self.ema is not None:
                        self.ema.update(self.net)
                self.sched.step()
            self.epoch += 1
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
            log.info("epoch %d mse %.4f, %d updates, %d skipped so far", self.epoch, total.item() / used, used, self.guard.skipped)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--phase", type=int, default=3)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    out = args.out or os.path.join(tempfile.gettempdir(), f"vetch-{os.environ.get('MASTER_PORT', '0')}")
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "last.pt")

    for stop in [*range(args.phase, args.epochs, args.phase), args.epochs]:
        run = Run(args, rank, world)
        if stop > args.phase:
            restore(path, run, rank)
        run.train_until(stop)
        save(path, run, rank)
        if stop < args.epochs:
            del run
            gc.collect()

    if rank == 0:
        x, y = run.loader.dataset[:2048]
        good = x.isfinite().all(1)
        with torch.no_grad():
            log.info("averaged weights: mse %.4f", F.mse_loss(run.ema.net(x[good]), y[good]).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
