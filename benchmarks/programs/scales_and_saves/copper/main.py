"""Stack of identical mixing blocks with one block skipped per step (structured layer drop).

Gradients are averaged by hand; skipped blocks have none and are left out.
"""
import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Linear(tokens, tokens)
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class MixerStack(nn.Module):
    def __init__(self, patch, tokens, width, depth, classes, skip_rng):
        super().__init__()
        self.embed = nn.Linear(patch, width)
        self.blocks = nn.ModuleList(Mixer(tokens, width) for _ in range(depth))
        self.out = nn.Linear(width, classes)
        self.skip_rng = skip_rng

    def forward(self, x):
        x = self.embed(x)
        skip = self.skip_rng.randrange(len(self.blocks)) if self.training else None
        for i, block in enumerate(self.blocks):
            if i != skip:
                x = block(x)
        return self.out(x.mean(1))


def coins(n, seed):
    """8x8 embossed patterns cut in 16 patches of 4 values."""
    proto = torch.randn(6, 16, 4, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (n,), generator=g)
    flip = torch.randint(0, 2, (n, 1, 1), generator=g) * 2.0 - 1
    return proto[y] * flip + torch.randn(n, 16, 4, generator=g), y


@torch.no_grad()
def average(params, world):
    ready = [p for p in params if p.grad is not None]
    handles = [dist.all_reduce(p.grad, async_op=True) for p in ready]
    for p, h in zip(ready, handles):
        h.wait()
        p.grad /= world


class Stream:
    """Shuffled index batches, the same permutation everywhere, each process its part."""

    def __init__(self, n, batch, rank, world, seed):
        self.n, self.batch, self.rank, self.world, self.seed = n, batch, rank, world, seed

    def epoch(self, e):
        perm = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed + e))
        whole = self.batch * self.world
        for at in range(0, self.n - whole + 1, whole):
            yield perm[at:at + whole][self.rank::self.world]


@torch.no_grad()
def accuracy(net, x, y, rank, world):
    net.eval()
    p = net(x[rank::world]).argmax(1)
    s = torch.tensor([(p == y[rank::world]).sum().item(), len(p)], dtype=torch.float64)
    dist.all_reduce(s)
    net.train()
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=64)
    ap.add_argument("--save", default="coins.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    skip_rng = random.Random(args.seed + rank)
    net = MixerStack(4, 16, 32, args.depth, 6, skip_rng)
    for t in net.state_dict().values():
        dist.broadcast(t, 0)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.02)
    x, y = coins(1024, 2)
    vx, vy = coins(512, 3)
    stream = Stream(len(x), args.batch, rank, world, args.seed)

    for e in range(args.epochs):
        meter = torch.zeros(2, dtype=torch.float64)
        for idx in stream.epoch(e):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            average(net.parameters(), world)
            opt.step()
            meter += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(meter)
        acc = accuracy(net, vx, vy, rank, world)
        if rank == 0:
            print(f"epoch {e} loss {meter[0] / meter[1]:.4f} acc {acc:.3f}", flush=True)

    if rank == 0:
        torch.save(net.state_dict(), args.save + ".tmp")
        os.replace(args.save + ".tmp", args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
