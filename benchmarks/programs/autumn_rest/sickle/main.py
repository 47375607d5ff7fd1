import argparse
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from snapshots import Snapshotter


class ConvNet(nn.Module):
    def __init__(self, width=24, classes=8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2 * width * 16, 768), nn.ReLU(), nn.Linear(768, classes))

    def forward(self, x):
        return self.head(self.features(x))


class Patterns:
    def __init__(self, classes=8):
        self.base = torch.randn(classes, 3, 16, 16, generator=torch.Generator().manual_seed(2))

    def batch(self, step, rank, n):
        g = torch.Generator().manual_seed(step * 64 + rank)
        y = torch.randint(0, len(self.base), (n,), generator=g)
        return self.base[y] + 2.5 * torch.randn(n, 3, 16, 16, generator=g), y


def build(folder, group):
    torch.manual_seed(6)
    net = ConvNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return net, optimizer, Snapshotter(folder, net, optimizer, group)


def train(net, optimizer, snaps, data, start, stop, batch):
    model, rank = DDP(net), dist.get_rank()
    for step in range(start, stop):
        x, y = data.batch(step, rank, batch)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 20 == 0:
            snaps.take(step + 1)
            if rank == 0:
                print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    snaps.finish()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--interrupt", type=int, default=90)
    p.add_argument("--batch", type=int, default=32)
    args = p.parse_args()
    dist.init_process_group("gloo")
    side = dist.new_group(backend="gloo")
    folder = [tempfile.mkdtemp(prefix="patterns-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    data = Patterns()

    net, optimizer, snaps = build(folder[0], side)
    train(net, optimizer, snaps, data, 0, args.interrupt, args.batch)
    net, optimizer, snaps = build(folder[0], side)
    step = snaps.restore()
    if dist.get_rank() == 0:
        print(f"restored at step {step}", flush=True)
    train(net, optimizer, snaps, data, step, args.steps, args.batch)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
