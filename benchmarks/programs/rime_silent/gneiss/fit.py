# coding: utf-8
"""Temporal conv net for shot classification on multi-channel time series."""
import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=12, type=int)
parser.add_argument("--batch-size", default=32, type=int)
parser.add_argument("--lr", default=0.02, type=float)
parser.add_argument("--factor", default=0.5, type=float)
parser.add_argument("--patience", default=0, type=int)
parser.add_argument("--seed", default=11, type=int)


class Shots(Dataset):
    def __init__(self, n, seed, noise=1.0):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 3, n)
        t = np.arange(96) / 96.0
        freq = np.array([2.0, 3.0, 4.5])[self.y]
        phase = rng.uniform(0, 2 * np.pi, (n, 1, 1))
        base = np.sin(2 * np.pi * freq[:, None, None] * t + phase + np.arange(4)[None, :, None] * 0.3)
        self.x = (base + noise * rng.standard_normal((n, 4, 96))).astype("float32")
        flip = rng.random(n) < 0.1
        self.y = np.where(flip, rng.integers(0, 3, n), self.y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


class TCN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        mods, c = [], 4
        for d in (1, 2, 4, 8):
            mods += [nn.Conv1d(c, width, 5, padding=2 * d, dilation=d), nn.GroupNorm(4, width), nn.ReLU()]
            c = width
        self.body = nn.Sequential(*mods)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        return self.out(self.body(x).mean(-1))


def reduce_mean(total, count):
    t = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(t)
    return (t[0] / t[1]).item()


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    total, count, correct = 0.0, 0, 0
    for x, y in loader:
        out = model(x)
        total += criterion(out, y).item() * len(y)
        correct += (out.argmax(1) == y).sum().item()
        count += len(y)
    model.train()
    return total, correct, count


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    train_set, val_set = Shots(1536, 0), Shots(192 * world, 1)
    train_sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, 64, sampler=DistributedSampler(val_set, shuffle=False))

    model = DistributedDataParallel(TCN())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    scheduler = ReduceLROnPlateau(optimizer, factor=args.factor, patience=args.patience, threshold=1e-3)

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        seen, train_loss = 0, 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            train_loss += loss.item() * len(y)
            seen += len(y)
        total, correct, count = evaluate(model, val_loader, criterion)
        mean_train = reduce_mean(train_loss, seen)
        mean_val = reduce_mean(total, count)
        mean_acc = reduce_mean(correct, count)
        scheduler.step(mean_val)
        if rank == 0:
            print("epoch %2d  train %.4f  val %.4f  acc %.3f  lr %.2e" %
                  (epoch, mean_train, mean_val, mean_acc, optimizer.param_groups[0]["lr"]), flush=True)
    if rank == 0:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tcn_final.pt")
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
