"""Tile dataset with a block cache that the first rank fills in the background."""
import argparse
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class BlockCache:
    def __init__(self, blocks, cost):
        self.blocks = blocks
        self.cost = cost
        self.guard = threading.Lock()
        self.kept = {}

    def _read(self, k):
        time.sleep(self.cost)
        g = torch.Generator().manual_seed(k)
        return torch.randn(16, 3, 6, 6, generator=g)

    def get(self, k):
        with self.guard:
            if k not in self.kept:
                self.kept[k] = self._read(k)
            return self.kept[k]

    def fill(self):
        with self.guard:
            for k in range(self.blocks):
                if k not in self.kept:
                    self.kept[k] = self._read(k)


class Tiles(Dataset):
    def __init__(self, cache):
        self.cache = cache

    def __len__(self):
        return self.cache.blocks * 16

    def __getitem__(self, i):
        tile = self.cache.get(i // 16)[i % 16]
        return tile, tile.mean()


class Reader:
    def __init__(self, args, rank, world):
        self.cache = BlockCache(args.blocks, args.cost)
        self.rank = rank
        sampler = torch.utils.data.DistributedSampler(Tiles(self.cache), world, rank, shuffle=False)
        self.loader = DataLoader(Tiles(self.cache), batch_size=16, sampler=sampler, num_workers=1,
                                 multiprocessing_context="fork")
        self.filler = threading.Thread(target=self.cache.fill, daemon=True)

    def open(self):
        if self.rank == 0:
            self.filler.start()
        return iter(self.loader)


def net_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 1))


def average(net, world):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--blocks", type=int, default=12)
    p.add_argument("--cost", type=float, default=0.2)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    reader = Reader(args, rank, world)
    net = net_of()
    opt = torch.optim.SGD(net.parameters(), lr=args.lr)
    dist.barrier()
    seen = 0
    for tiles, target in reader.open():
        loss = (net(tiles).squeeze(-1) - target).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        average(net, world)
        opt.step()
        seen += len(tiles)
    if rank == 0:
        print(f"{seen} tiles, loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
