"""Land-cover classifier on satellite tiles kept on the institute's network file system."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

OPEN_LATENCY = 0.0025  # seconds: one open + read round trip to the file server


class TileStore(Dataset):
    """One file per tile. The tiles are made here from the index, with the server's latency."""

    def __init__(self, n, classes=5):
        g = torch.Generator().manual_seed(9)
        self.n = n
        self.label = torch.randint(classes, (n,), generator=g)
        self.base = F.interpolate(torch.randn(classes, 4, 4, 4, generator=g), size=32)

    def __len__(self):
        return self.n

    def read(self, i):
        time.sleep(OPEN_LATENCY)
        g = torch.Generator().manual_seed(i)
        return 0.5 * self.base[self.label[i]] + torch.randn(4, 32, 32, generator=g)

    def __getitem__(self, i):
        return self.read(i), self.label[i]


def conv(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(8, cout), nn.ReLU())


class TileNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.body = nn.Sequential(conv(4, 32, 2), conv(32, 48, 1), conv(48, 64, 2))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--tiles", type=int, default=960)
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TileStore(args.tiles)
    sampler = DistributedSampler(data, shuffle=True, seed=2)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(TileNet())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen = right = 0
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(y)
            right += (out.argmax(1) == y).sum().item()
        stat = torch.tensor([right, seen], dtype=torch.float)
        dist.all_reduce(stat)
        if rank == 0:
            print(f"epoch {epoch} accuracy {stat[0] / stat[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
