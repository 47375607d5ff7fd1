import argparse
import math
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from checkpoint import load_checkpoint, save_checkpoint


class Spectra(Dataset):
    def __init__(self, n, seed, bins=64, classes=8):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(classes, (n,), generator=g)
        axis = torch.arange(bins).float()
        centre = 6 + self.y.float() * 7 + torch.randn(n, generator=g)
        peak = torch.exp(-((axis[None] - centre[:, None]) ** 2) / 12)
        self.x = (peak + 0.35 * torch.randn(n, bins, generator=g))[:, None]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def build_network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(256, 8),
    )


def set_lr(optimizer, base, epoch, it, per_epoch, epochs):
    progress = (epoch + it / per_epoch) / epochs
    lr = 0.5 * base * (1 + math.cos(math.pi * progress))
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def accuracy(model, data):
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        x, y = data.x[rank::world], data.y[rank::world]
        right = torch.tensor([(model(x).argmax(1) == y).sum().item(), float(len(y))])
    dist.all_reduce(right)
    model.train()
    return (right[0] / right[1]).item()


def run(args, path, stop_epoch):
    rank = dist.get_rank()
    model = build_network(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.02)
    first, best = load_checkpoint(path, model, optimizer)
    if first and rank == 0:
        print(f"=> resumed from epoch {first}, best {best:.3f}", flush=True)
    ddp = DDP(model)
    train, val = Spectra(args.samples, seed=1), Spectra(400, seed=2)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(first, stop_epoch):
        sampler.set_epoch(epoch)
        seen, total = 0, torch.zeros(())
        for it, (x, y) in enumerate(loader):
            lr = set_lr(optimizer, args.lr, epoch, it, len(loader), args.epochs)
            loss = F.cross_entropy(ddp(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(y)
            seen += len(y)
        stats = torch.stack([total, torch.tensor(float(seen))])
        dist.all_reduce(stats)
        score = accuracy(model, val)
        best = max(best, score)
        if rank == 0:
            print(f"epoch {epoch} loss {stats[0] / stats[1]:.4f} acc {score:.3f} best {best:.3f} lr {lr:.5f}", flush=True)
        save_checkpoint(path, model, optimizer, epoch, best)
    return best


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--requeue-at", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--samples", type=int, default=1152)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp(prefix="spectra_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    path = os.path.join(box[0], "checkpoint.pt")
    run(args, path, args.requeue_at)
    best = run(args, path, args.epochs)
    if dist.get_rank() == 0:
        print(f"finished, best accuracy {best:.3f}", flush=True)
        shutil.rmtree(box[0], ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
