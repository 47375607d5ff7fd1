"""Three pipeline stages of unequal size: a thin stem, a deep trunk and a classifier head."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.f = nn.Sequential(
            nn.GroupNorm(4, ch), nn.ReLU(), nn.Conv2d(ch, ch, 3, 1, 1), nn.GroupNorm(4, ch), nn.ReLU(),
            nn.Conv2d(ch, ch, 3, 1, 1),
        )

    def forward(self, x):
        return x + self.f(x)


def build(rank, ch, depth, classes):
    if rank == 0:
        return nn.Conv2d(3, ch, 3, 2, 1)
    if rank == 1:
        return nn.Sequential(*[Residual(ch) for _ in range(depth)])
    return nn.Sequential(nn.GroupNorm(4, ch), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ch, classes))


class Link:
    """Activations go right, their gradients come back."""

    def __init__(self, rank, world, shape):
        self.left = rank - 1 if rank > 0 else None
        self.right = rank + 1 if rank < world - 1 else None
        self.shape = shape
        self.pending = []

    def pull(self, peer):
        buf = torch.empty(self.shape)
        dist.recv(buf, peer)
        return buf

    def push(self, tensor, peer):
        self.pending.append((dist.isend(tensor.contiguous(), peer), tensor))

    def flush(self):
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()


def images(n, proto, g):
    y = torch.randint(0, len(proto), (n,), generator=g)
    return proto[y] + 0.8 * torch.randn(n, 3, 24, 24, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--channels", type=int, default=16)
    ap.add_argument("--depth", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = build(rank, args.channels, args.depth, classes=10)
    opt = torch.optim.Adam(stage.parameters(), lr=2e-3)
    link = Link(rank, world, (args.batch, args.channels, 12, 12))
    proto = torch.randn(10, 3, 24, 24, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(44)
    waited = 0.0
    for step in range(1, args.steps + 1):
        opt.zero_grad()
        data = [images(args.batch, proto, g) for _ in range(args.micro)]
        kept = []
        for x, y in data:
            if link.left is not None:
                x = link.pull(link.left).requires_grad_(True)
            out = stage(x)
            if link.right is not None:
                link.push(out.detach(), link.right)
            else:
                out = F.cross_entropy(out, y) / args.micro
            kept.append((x, out))
        for x, out in kept:
            if link.right is not None:
                start = time.perf_counter()
                grad = link.pull(link.right)
                waited += time.perf_counter() - start
                out.backward(grad)
            else:
                out.backward()
            if link.left is not None:
                link.push(x.grad, link.left)
        link.flush()
        opt.step()
        if rank == world - 1 and step % 10 == 0:
            print(f"step {step} loss {sum(o.item() for _, o in kept):.4f}", flush=True)
    print(f"stage {rank} waited {waited:.1f}s for gradients", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
