import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from p2p import Link
from schedule import OneFOneB


class Stage(nn.Module):
    def __init__(self, width, depth, is_last):
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 10) if is_last else None

    def forward(self, x, target):
        for layer in self.body:
            x = x + torch.tanh(layer(x))
        if self.head is None:
            return x
        return F.cross_entropy(self.head(x), target)


def partition(n_layers, world, ends):
    """Give the ends fewer blocks (embedding / head live there)."""
    mid = n_layers - 2 * ends
    per_mid = mid // max(world - 2, 1)
    return [ends] + [per_mid] * (world - 2) + [ends]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--end-layers", type=int, default=2)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--micro-batches", type=int, default=8)
    ap.add_argument("--micro-size", type=int, default=4)
    ap.add_argument("--iters", type=int, default=12)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    depth = partition(args.layers, world, args.end_layers)[rank]
    torch.manual_seed(5 + rank)
    stage = Stage(args.width, depth, rank == world - 1)
    opt = torch.optim.Adam(stage.parameters(), lr=1e-3)
    link = Link(rank, world, (args.micro_size, args.width))
    sched = OneFOneB(stage, link, rank, world, args.micro_batches, depth)
    print(f"stage {rank}: {depth} blocks, {sum(p.numel() for p in stage.parameters())} params", flush=True)

    gen = torch.Generator().manual_seed(0)
    for it in range(args.iters):
        xs = torch.randn(args.micro_batches, args.micro_size, args.width, generator=gen)
        ys = torch.randint(0, 10, (args.micro_batches, args.micro_size), generator=gen)
        opt.zero_grad()
        losses = sched.step(list(xs), list(ys))
        opt.step()
        if losses and it % 4 == 0:
            print(f"iter {it} loss {sum(losses) / len(losses):.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
