"""Disruption prediction on multichannel signals with a temporal convolution network.

    torchrun --nproc_per_node 3 train.py
"""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("tcn")


class Shots(Dataset):
    """Discharges with a growing mode in the disruptive ones; later campaigns are noisier."""

    def __init__(self, count, length, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 2, (count,), generator=g).float()
        noise = torch.linspace(0.6, 2.2, count)
        t = torch.linspace(0, 1, length)
        freq = 10 + 30 * torch.rand(count, 1, 1, generator=g)
        mode = torch.sin(freq * 6.283 * t) * torch.exp(3 * (t - 1))
        self.x = mode * self.y[:, None, None] + noise[:, None, None] * torch.randn(count, 4, length, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class TemporalBlock(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv1 = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.conv2 = nn.Conv1d(cout, cout, 3, dilation=dilation)
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        h = F.relu(self.conv1(F.pad(x, (self.pad, 0))))
        h = F.relu(self.conv2(F.pad(h, (self.pad, 0))))
        return F.relu(h + self.skip(x))


class TCN(nn.Module):
    def __init__(self, channels=(32, 32, 32, 32)):
        super().__init__()
        sizes = (4,) + channels
        self.blocks = nn.Sequential(*[TemporalBlock(a, b, 2 ** i) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))])
        self.out = nn.Linear(channels[-1], 1)

    def forward(self, x):
        return self.out(self.blocks(x).amax(-1)).squeeze(-1)


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(1, self.count)


def reduce_mean(value):
    t = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(t)
    return (t / dist.get_world_size()).item()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    meter = AverageMeter()
    for x, y in loader:
        meter.update(F.binary_cross_entropy_with_logits(model(x), y).item(), len(y))
    return meter.avg


def train_epoch(model, loader, optimizer):
    model.train()
    meter = AverageMeter()
    for x, y in loader:
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), len(y))
    return meter.avg


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=14)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--patience", type=int, default=1)
    p.add_argument("--seed", type=int, default=100)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    out = args.out or tempfile.mkdtemp()
    torch.manual_seed(args.seed)

    train_set, valid_set = Shots(576, 256, args.seed), Shots(180, 256, args.seed + 1)
    train_sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    valid_sampler = DistributedSampler(valid_set, shuffle=False)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler)
    valid_loader = DataLoader(valid_set, args.batch_size, sampler=valid_sampler)

    model = DistributedDataParallel(TCN())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=args.patience)

    best = float("inf")
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train_loss = train_epoch(model, train_loader, optimizer)
        valid_loss = evaluate(model.module, valid_loader)
        # averaged over the processes for the log, the schedule and the checkpoint
        train_total, valid_total = reduce_mean(train_loss), reduce_mean(valid_loss)
        scheduler.step(valid_total)
        log.info("epoch %2d train %.4f valid %.4f", epoch, train_total, valid_total)
        if valid_total < best:
            best = valid_total
            if rank == 0:
                torch.save({"epoch": epoch, "model": model.module.state_dict(), "valid": best},
                           os.path.join(out, "best.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
