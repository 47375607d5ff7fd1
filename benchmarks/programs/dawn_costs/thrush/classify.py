"""Image classifier with an auxiliary head on the middle features."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def conv(inp, out, stride=1):
    return nn.Sequential(nn.Conv2d(inp, out, 3, stride, 1, bias=False), nn.GroupNorm(4, out), nn.ReLU())


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.low = nn.Sequential(conv(3, 16), conv(16, 32, 2))
        self.high = nn.Sequential(conv(32, 32), conv(32, 64, 2))
        self.fc = nn.Linear(64, classes)
        self.aux = nn.Sequential(conv(32, 16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, classes))

    def forward(self, x, with_aux):
        mid = self.low(x)
        out = self.fc(self.high(mid).mean((2, 3)))
        return (out, self.aux(mid)) if with_aux else (out, None)


class Textures:
    """Every class is a plane wave of its own direction and colour."""

    def __init__(self, classes, size, rank):
        g = torch.Generator().manual_seed(55)
        self.freq = torch.rand(classes, 2, generator=g) * 1.2 - 0.6
        self.colour = torch.rand(classes, 3, generator=g)
        grid = torch.arange(size, dtype=torch.float32)
        self.yy, self.xx = torch.meshgrid(grid, grid, indexing="ij")
        self.gen = torch.Generator().manual_seed(200 + rank)

    def batch(self, n):
        y = torch.randint(len(self.freq), (n,), generator=self.gen)
        phase = torch.rand(n, 1, 1, generator=self.gen) * 6.28
        f = self.freq[y]
        wave = torch.sin(f[:, :1, None] * self.yy + f[:, 1:, None] * self.xx + phase)
        x = wave[:, None] * self.colour[y][:, :, None, None]
        return x + 0.4 * torch.randn(x.shape, generator=self.gen), y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=150)
    p.add_argument("--aux-iters", type=int, default=90, help="iterations with the auxiliary loss")
    p.add_argument("--aux-weight", type=float, default=0.4)
    p.add_argument("--batch-size", type=int, default=24)
    opts = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = DistributedDataParallel(Net(10), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    data = Textures(10, 24, rank)

    for it in range(1, opts.iters + 1):
        images, labels = data.batch(opts.batch_size)
        out, aux = model(images, with_aux=it <= opts.aux_iters)
        loss = F.cross_entropy(out, labels)
        if aux is not None:
            loss = loss + opts.aux_weight * F.cross_entropy(aux, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it % 10 == 0 and rank == 0:
            acc = (out.argmax(1) == labels).float().mean().item()
            print(f"[{it:3d}/{opts.iters}] loss {loss.item():.4f} acc {acc:.2f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
