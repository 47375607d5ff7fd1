import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Scans(Dataset):
    def __init__(self, n=384, size=160, crop=112):
        self.n, self.size, self.crop = n, size, crop
        self.cache = {}

    def __len__(self):
        return self.n

    def read(self, i):
        rng = np.random.default_rng(i)
        coarse = rng.integers(0, 255, (self.size // 8, self.size // 8, 3), dtype=np.uint8)
        return coarse.repeat(8, axis=0).repeat(8, axis=1)

    def __getitem__(self, i):
        top = random.randint(0, self.size - self.crop)
        left = random.randint(0, self.size - self.crop)
        key = (i, top, left)
        patch = self.cache.get(key)
        if patch is None:
            image = self.read(i)
            patch = image[top:top + self.crop, left:left + self.crop].astype(np.float32) / 255.0
            self.cache[key] = patch
        return torch.from_numpy(patch.transpose(2, 0, 1).copy()), i % 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.features(x))


def seed_worker(worker_id):
    random.seed(torch.initial_seed() % 2**32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--batch", type=int, default=12)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Scans()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=2,
                        persistent_workers=True, worker_init_fn=seed_worker)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, target in loader:
            loss = nn.functional.cross_entropy(model(images), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
