"""Augmentation keyed by sample and epoch: the same picture gets the same treatment wherever it is read."""
import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Signals(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.label = rng.integers(0, 3, n)
        self.phase = rng.uniform(0, 2 * np.pi, n)
        self.seed, self.epoch = seed, 0

    def __len__(self):
        return len(self.label)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, i):
        rng = np.random.default_rng([self.seed, self.epoch, i])
        t = np.linspace(0, 1, 32, dtype=np.float32)
        x = np.sin(2 * np.pi * (self.label[i] + 1) * t + self.phase[i])
        x = x * rng.uniform(0.7, 1.3) + rng.normal(0, 0.2, 32)
        lo = rng.integers(0, 28)
        x[lo:lo + 4] = 0.0
        return x.astype(np.float32), int(self.label[i])


def mix(batch, rng):
    """Collation with mixing; the partner inside the batch comes from the rank's own generator."""
    x = torch.tensor(np.stack([b[0] for b in batch]))
    y = F.one_hot(torch.tensor([b[1] for b in batch]), 3).float()
    lam = rng.betavariate(0.4, 0.4)
    order = list(range(len(batch)))
    rng.shuffle(order)
    return lam * x + (1 - lam) * x[order], lam * y + (1 - lam) * y[order]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--seed", type=int, default=23)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    data = Signals(288, args.seed)
    sampler = DistributedSampler(data, seed=args.seed)
    own = random.Random(args.seed * 1000 + rank)
    loader = DataLoader(data, args.batch, sampler=sampler, collate_fn=lambda b: mix(b, own))
    model = DDP(nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 3)))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(args.epochs):
        data.set_epoch(epoch)
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
