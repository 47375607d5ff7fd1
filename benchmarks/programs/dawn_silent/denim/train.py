import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from data_parallel import DataParallelNaive


class ConvNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.n1, self.n2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 32)
        self.fc = nn.Linear(32 * 9, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.n1(self.c1(x))), 2)
        x = F.max_pool2d(F.relu(self.n2(self.c2(x))), 2)
        return self.fc(x.flatten(1))


def gratings(gen, n, classes=8):
    """Oriented stripes; the class is the angle."""
    y = torch.randint(0, classes, (n,), generator=gen)
    theta = y * (3.14159 / classes)
    phase = torch.rand(n, generator=gen) * 6.28
    u = torch.linspace(-1, 1, 12)
    gx, gy = torch.meshgrid(u, u, indexing="xy")
    wave = gx * theta.cos()[:, None, None] + gy * theta.sin()[:, None, None]
    img = torch.sin(6 * wave + phase[:, None, None])
    return (img + 0.9 * torch.randn(n, 12, 12, generator=gen)).unsqueeze(1), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--grad-acc", type=int, default=4)
    ap.add_argument("--mbs", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    model = DataParallelNaive(ConvNet())
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    gen = torch.Generator().manual_seed(700 + rank)
    for step in range(args.steps):
        opt.zero_grad()
        running = torch.zeros(1)
        for micro in range(args.grad_acc):
            x, y = gratings(gen, args.mbs)
            last = micro == args.grad_acc - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.cross_entropy(model(x), y) / args.grad_acc
                loss.backward()
            running += loss.detach()
        opt.step()
        dist.all_reduce(running)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {running.item() / world:.4f}", flush=True)
    if rank == 0:
        print(f"done, loss {running.item() / world:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
