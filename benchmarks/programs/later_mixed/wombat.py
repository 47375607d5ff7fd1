"""Image-like data decoded once: decoded samples stay in memory from the first epoch on."""
import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Decoded(Dataset):
    """Slow decode, then a cache; the cache holds exactly this rank's samples."""

    def __init__(self, n=384, side=96):
        self.n, self.side = n, side
        self.cache = {}

    def decode(self, i):
        time.sleep(0.004)
        rng = np.random.default_rng(i)
        label = i % 4
        img = rng.normal(0, 1, (3, self.side, self.side)).astype(np.float32)
        img[:, label * 20:label * 20 + 16] += 0.6
        return img, label

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.decode(i)
        img, label = self.cache[i]
        return torch.from_numpy(img), label


class StickyShare(Sampler):
    """A rank always gets the same rows (so that the cache hits), in a new order each epoch."""

    def __init__(self, n, rank, world, seed=0):
        self.rows = torch.arange(rank, n - n % world, world)
        self.rank, self.seed, self.epoch = rank, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 1000 * self.epoch + self.rank)
        return iter(self.rows[torch.randperm(len(self.rows), generator=g)].tolist())


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d((8, 1)), nn.Flatten(), nn.Linear(128, 4))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    data = Decoded()
    sampler = StickyShare(len(data), rank, world)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    ddp = DDP(build())
    opt = torch.optim.Adam(ddp.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        begin = time.time()
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            mb = sum(v[0].nbytes for v in data.cache.values()) / 1e6
            print(f"epoch {epoch} loss {loss.item():.4f} cache {mb:.0f} MB, {time.time() - begin:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
