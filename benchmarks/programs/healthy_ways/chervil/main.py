"""Sharpness-aware training: each rank climbs along its own gradient, all descend together."""
import argparse
import csv
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from sam import SAM


def spirals(n, arms, seed, flip=0.1):
    g = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % arms
    r = torch.rand(n, generator=g) * 0.9 + 0.1
    angle = r * 4.0 + label * (2 * torch.pi / arms) + 0.12 * torch.randn(n, generator=g)
    base = torch.stack([r * angle.cos(), r * angle.sin()], 1)
    lift = torch.randn(2, 10, generator=torch.Generator().manual_seed(77))
    x = torch.cat([base, (base @ lift).sin()], 1)
    wrong = torch.rand(n, generator=g) < flip
    noisy = torch.where(wrong, torch.randint(0, arms, (n,), generator=g), label)
    return x, noisy, label


class MLP(nn.Module):
    def __init__(self, fan_in, classes, width=96):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(fan_in, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        for lin, norm in zip(self.layers, self.norms):
            x = F.gelu(norm(lin(x)))
        return self.head(x)


class History:
    def __init__(self, path, active):
        self.path, self.active, self.rows = path, active, []

    def add(self, **row):
        if self.active:
            self.rows.append(row)
            print("  ".join(f"{k}={v:.4f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)

    def close(self):
        if self.active:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "w", newline="") as f:
                w = csv.DictWriter(f, fieldnames=list(self.rows[0]))
                w.writeheader()
                w.writerows(self.rows)


def step(model, sam, x, y, smoothing):
    with model.no_sync():
        F.cross_entropy(model(x), y, label_smoothing=smoothing).backward()
    norm = sam.climb()
    loss = F.cross_entropy(model(x), y, label_smoothing=smoothing)
    loss.backward()
    sam.descend()
    return loss.detach(), norm


@torch.no_grad()
def evaluate(net, loader, rank, world):
    net.eval()
    tally = torch.zeros(2)
    for i, (x, y) in enumerate(loader):
        if i % world == rank:
            tally += torch.tensor([(net(x).argmax(1) == y).sum().item(), float(len(y))])
    dist.all_reduce(tally)
    net.train()
    return (tally[0] / tally[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=40)
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--rho", type=float, default=0.05)
    ap.add_argument("--smoothing", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    x, noisy, _ = spirals(2400, 3, seed=1)
    xv, _, clean = spirals(600, 3, seed=2)
    train = TensorDataset(x, noisy)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    held = DataLoader(TensorDataset(xv, clean), batch_size=50)

    model = DDP(MLP(x.shape[1], 3))
    base = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    sam = SAM(model.parameters(), base, args.rho)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(base, args.epochs)
    history = History("runs/chervil/history.csv", rank == 0)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, losses, norms = time.perf_counter(), [], []
        for bx, by in loader:
            loss, norm = step(model, sam, bx, by, args.smoothing)
            losses.append(loss)
            norms.append(norm)
        sched.step()
        mean = torch.stack([torch.stack(losses).mean(), torch.stack(norms).mean()])
        dist.all_reduce(mean)
        mean /= world
        acc = evaluate(model.module, held, rank, world)
        history.add(epoch=epoch, loss=mean[0].item(), local_norm=mean[1].item(), accuracy=acc,
                    seconds=time.perf_counter() - t0)
    history.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
