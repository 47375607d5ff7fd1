"""Regression of a drag coefficient from synthetic wing profiles, data parallel."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("cowrie")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--patience", type=int, default=0)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


def build_data(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(480, 12, generator=g)
    w = torch.randn(12, 1, generator=g)
    y = torch.tanh(x @ w) + 0.4 * torch.randn(480, 1, generator=g)
    full = TensorDataset(x, y)
    return Subset(full, range(0, 320)), Subset(full, range(320, 480))


class Profile(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


class Runner:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        train, val = build_data(args.seed)
        self.sampler = DistributedSampler(train, seed=args.seed)
        self.train = DataLoader(train, args.batch_size, sampler=self.sampler, drop_last=True)
        self.val = DataLoader(val, 32, sampler=DistributedSampler(val, shuffle=False))
        self.model = DDP(Profile())
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, factor=0.5, patience=args.patience)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total, count = torch.zeros(()), 0
        for x, y in self.val:
            total += F.mse_loss(self.model.module(x), y, reduction="sum")
            count += len(x)
        self.model.train()
        return total / count

    def fit(self):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.train:
                loss = F.mse_loss(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            val = self.validate()
            self.sched.step(val.item())
            if self.rank == 0:
                log.info("epoch %d val %.4f lr %.5f", epoch, val.item(), self.opt.param_groups[0]["lr"])


def main():
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    runner = Runner(parse())
    runner.fit()
    if runner.rank == 0:
        os.makedirs("/tmp/cowrie", exist_ok=True)
        torch.save(runner.model.module.state_dict(), "/tmp/cowrie/last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
