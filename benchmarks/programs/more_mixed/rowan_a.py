"""Hybrid layout: average gradients inside a pair every step, across pairs every few steps."""
import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


@dataclass
class Layout:
    rank: int
    world: int
    width: int
    inner: object = None

    @property
    def row(self):
        return self.rank // self.width

    def members(self, row):
        return list(range(row * self.width, (row + 1) * self.width))


def build_layout(width):
    layout = Layout(dist.get_rank(), dist.get_world_size(), width)
    for row in range(layout.world // width):
        group = dist.new_group(layout.members(row))
        if row == layout.row:
            layout.inner = group
    return layout


class Classifier(nn.Module):
    def __init__(self, d_in=18, hidden=40, classes=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                 nn.Linear(hidden, classes))

    def forward(self, x):
        return self.net(x)


def average(tensors, group, n):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat, group=group)
    flat /= n
    pos = 0
    for t in tensors:
        t.copy_(flat[pos:pos + t.numel()].view_as(t))
        pos += t.numel()


def stream(rank, n, bs, seed=70):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(18, 4, generator=g)
    g.manual_seed(seed + 1 + rank)
    for _ in range(n):
        x = torch.randn(bs, 18, generator=g)
        yield x, (x @ w).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=32)
    ap.add_argument("--pair", type=int, default=2)
    ap.add_argument("--outer-every", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    layout = build_layout(args.pair)
    torch.manual_seed(1)
    model = Classifier()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(stream(layout.rank, args.steps, 32), 1):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        average([p.grad for p in model.parameters()], layout.inner, layout.width)
        opt.step()
        if step % args.outer_every == 0:
            with torch.no_grad():
                average([p.data for p in model.parameters()], None, layout.world)
        if step % 8 == 0 and layout.rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
