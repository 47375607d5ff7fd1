"""Deep residual net whose block weights are kept in slices and collected when a block runs."""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Collect(torch.autograd.Function):
    """Slice of a weight -> whole weight; the gradient goes back averaged and sliced."""

    @staticmethod
    def forward(ctx, part):
        world = dist.get_world_size()
        parts = [torch.empty_like(part) for _ in range(world)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        world, rank = dist.get_world_size(), dist.get_rank()
        return grad.chunk(world)[rank] / world


class SlicedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        whole = torch.empty(2 * dim, dim)
        nn.init.kaiming_uniform_(whole, a=5 ** 0.5)
        self.part = nn.Parameter(whole.chunk(world)[rank].clone())
        self.dim = dim

    def forward(self, x):
        w = Collect.apply(self.part)
        up, down = w.split(self.dim)
        return x + F.gelu(x @ up.t()) @ down


class DeepNet(nn.Module):
    def __init__(self, dim, depth, drop):
        super().__init__()
        self.blocks = nn.ModuleList(SlicedBlock(dim) for _ in range(depth))
        self.drop = drop

    def forward(self, x):
        for block in self.blocks:
            skip = self.training and random.random() < self.drop
            y = block(x)
            x = x + 0.0 * y if skip else y
        return x


def seed_all(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def batches(rank, steps, size, dim):
    g = torch.Generator().manual_seed(500 + rank)
    for _ in range(steps):
        x = torch.randn(size, dim, generator=g)
        yield x, x.roll(1, 1) * 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--depth", type=int, default=6)
    ap.add_argument("--layerdrop", type=float, default=0.15)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seed_all(9)
    net = DeepNet(args.dim, args.depth, args.layerdrop)
    seed_all(9 + 1000 * rank)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)

    net.train()
    for step, (x, y) in enumerate(batches(rank, args.steps, 16, args.dim)):
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    net.eval()
    with torch.no_grad():
        x = torch.randn(64, args.dim, generator=torch.Generator().manual_seed(1))
        held = F.mse_loss(net(x), x.roll(1, 1) * 0.5)
    if rank == 0:
        print(f"held-out {held.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
