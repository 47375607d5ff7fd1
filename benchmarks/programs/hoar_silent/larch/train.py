import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler


def set_seed(seed, rank=0):
    """Augmentation must differ between the ranks, so the rank goes into the seed."""
    seed = seed + rank * 12345
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Frames(Dataset):
    def __init__(self, n=900, size=16, classes=5):
        rng = np.random.default_rng(42)
        self.labels = rng.integers(0, classes, n)
        proto = rng.normal(size=(classes, size, size)).astype("float32")
        self.images = proto[self.labels] + rng.normal(scale=1.5, size=(n, size, size)).astype("float32")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = torch.from_numpy(self.images[i])[None]
        if random.random() < 0.3:
            img = img + 0.1 * torch.randn_like(img)
        return img, int(self.labels[i])


class SmallConv(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(3, 24), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.fc = nn.Linear(24 * 16, classes)

    def forward(self, x):
        return self.fc(self.body(x))


def make_datasets(cfg):
    full = Frames()
    n_val = int(len(full) * cfg.val_frac)
    g = torch.Generator().manual_seed(cfg.seed)
    train, val = random_split(full, [len(full) - n_val, n_val], generator=g)
    return train, val


def make_loaders(cfg):
    train, val = make_datasets(cfg)
    ts = DistributedSampler(train, shuffle=True, seed=cfg.seed)
    vs = DistributedSampler(val, shuffle=False)
    return DataLoader(train, cfg.batch_size, sampler=ts), DataLoader(val, 64, sampler=vs)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    stat = torch.zeros(3)
    for x, y in loader:
        out = model(x)
        stat += torch.tensor([F.cross_entropy(out, y, reduction="sum").item(), (out.argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(stat)
    return (stat[0] / stat[2]).item(), (stat[1] / stat[2]).item()


def main(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    set_seed(cfg.seed, rank)
    train_loader, val_loader = make_loaders(cfg)
    model = DDP(SmallConv())
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    for epoch in range(cfg.epochs):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        vl, va = validate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch}: val loss {vl:.4f}, val acc {va:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=20)
    ap.add_argument("--val-frac", type=float, default=0.2)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=1234)
    main(ap.parse_args())
