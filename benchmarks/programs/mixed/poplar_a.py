import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Slides(Dataset):
    def __init__(self, n=192, size=96):
        self.n, self.size = n, size
        self.decoded = {}

    def __len__(self):
        return self.n

    def decode(self, i):
        rng = np.random.default_rng(i)
        tile = rng.integers(0, 255, (self.size // 4, self.size // 4, 3), dtype=np.uint8)
        return tile.repeat(4, axis=0).repeat(4, axis=1).astype(np.float32) / 255.0

    def __getitem__(self, i):
        if i not in self.decoded:
            self.decoded[i] = self.decode(i)
        return torch.from_numpy(self.decoded[i].transpose(2, 0, 1).copy()), i % 4


class OwnShard:
    def __init__(self, count, rank, world, batch):
        self.index = list(range(rank, count, world))
        self.batch, self.epoch = batch, 0

    def __len__(self):
        return len(self.index) // self.batch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.index), generator=g).tolist()
        for b in range(len(self)):
            yield [self.index[j] for j in order[b * self.batch:(b + 1) * self.batch]]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))

    def forward(self, x):
        return self.net(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Slides()
    sampler = OwnShard(len(data), rank, world, args.batch)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1, persistent_workers=True, prefetch_factor=4)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.epoch = epoch
        total = 0.0
        for images, target in loader:
            loss = nn.functional.cross_entropy(model(images), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(sampler):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
