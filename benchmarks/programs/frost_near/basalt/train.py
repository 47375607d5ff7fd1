import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import TideGauge
from optim import ReducingSGD

log = logging.getLogger("tide")


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--passes-per-step", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


class Forecaster(nn.Module):
    def __init__(self, window, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(window, width), nn.Tanh(),
                                  nn.Linear(width, width), nn.Tanh())
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x))


def train_epoch(model, loader, opt, passes):
    model.train()
    total, seen = torch.zeros(()), 0
    opt.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        (loss / passes).backward()
        total += loss.detach()
        seen += 1
        if (i + 1) % passes == 0:
            opt.step()
            opt.zero_grad()
    return total / seen


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING)
    torch.manual_seed(args.seed)

    ds = TideGauge()
    sampler = DistributedSampler(ds, seed=args.seed, drop_last=True)
    loader = DataLoader(ds, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    assert len(loader) % args.passes_per_step == 0

    model = Forecaster(ds.window)
    opt = ReducingSGD(model.parameters(), lr=args.lr, momentum=0.9,
                      passes_per_step=args.passes_per_step)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        mean = train_epoch(model, loader, opt, args.passes_per_step)
        dist.all_reduce(mean)
        log.info("epoch %d mse %.4f", epoch, (mean / dist.get_world_size()).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
