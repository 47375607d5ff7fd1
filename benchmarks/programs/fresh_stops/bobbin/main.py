import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from telemetry import COUNTERS, Writer


class Patches(Dataset):
    """Textures made on the fly, two kinds to tell apart."""

    def __init__(self, size, seed, augment=True):
        self.size, self.seed, self.augment = size, seed, augment

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        label = i % 2
        x = torch.randn(1, 20, 20, generator=g)
        if label:
            x = F.avg_pool2d(x.unsqueeze(0), 3, 1, 1)[0] * 2.5
        if self.augment and torch.rand((), generator=g) < 0.5:
            x = x.flip(-1)
            COUNTERS.bump("flipped")
        COUNTERS.bump("served")
        return x, label


def network():
    return nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))


def accuracy(model, loader):
    model.eval()
    hits = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            hits += torch.tensor([(model(x).argmax(1) == y).sum(), y.numel()])
    dist.all_reduce(hits)
    model.train()
    return (hits[0] / hits[1]).item()


def get_args():
    ap = argparse.ArgumentParser(description="texture classifier")
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--telemetry", default="/tmp/texture_telemetry.bin")
    ap.add_argument("--checkpoint", default="/tmp/texture.pt")
    ap.add_argument("--seed", type=int, default=21)
    return ap.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    writer = None
    if rank == 0:
        open(args.telemetry, "wb").close()
        writer = Writer(args.telemetry)
        writer.start()

    train, held_out = Patches(320, 0), Patches(64, 50_000, augment=False)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    common = dict(batch_size=args.batch_size, num_workers=args.workers, multiprocessing_context="fork")
    train_loader = DataLoader(train, sampler=sampler, drop_last=True, **common)
    test_loader = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False), **common)

    model = DistributedDataParallel(network())
    optim = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = time.time()
        for it, (x, y) in enumerate(train_loader):
            loss = F.cross_entropy(model(x), y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            COUNTERS.bump("steps")
            if rank == 0 and it % 5 == 0:
                print(f"[{epoch}:{it}] loss {loss.item():.4f}", flush=True)
        acc = accuracy(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch} accuracy {acc:.3f} ({time.time() - start:.1f}s)", flush=True)
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, args.checkpoint)
    if writer is not None:
        writer.stop()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
