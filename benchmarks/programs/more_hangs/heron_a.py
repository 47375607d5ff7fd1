"""Train, then average validation figures over ranks."""
import argparse
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn


class Figures:
    def __init__(self, *names):
        self.sums = OrderedDict((n, 0) for n in names)
        self.seen = 0

    def add(self, count, **values):
        for name, v in values.items():
            self.sums[name] += v * count
        self.seen += count

    def averaged(self):
        packed = torch.tensor([*self.sums.values(), self.seen])
        dist.all_reduce(packed)
        total = packed[-1].item()
        return {n: packed[i].item() / total for i, n in enumerate(self.sums)}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.f(x).squeeze(-1)


def synth(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, x[:, 0] * x[:, 1] + 0.3 * x[:, 2]


def blocks_of(n, size, rank, world):
    starts = list(range(0, n, size))
    return [slice(s, min(s + size, n)) for s in starts[rank::world]]


def average_grads(net, world):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def fit(net, args, rank, world):
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    x, y = synth(args.train, 1)
    for _ in range(args.epochs):
        for part in blocks_of(args.train, args.batch, rank, world):
            loss = nn.functional.mse_loss(net(x[part]), y[part])
            opt.zero_grad()
            loss.backward()
            average_grads(net, world)
            opt.step()


@torch.no_grad()
def validate(net, args, rank, world):
    x, y = synth(args.valid, 2)
    figures = Figures("mse", "mae")
    for part in blocks_of(args.valid, args.batch, rank, world):
        err = net(x[part]) - y[part]
        figures.add(err.numel(), mse=err.pow(2).mean().item(), mae=err.abs().mean().item())
    return figures.averaged()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train", type=int, default=288)
    p.add_argument("--valid", type=int, default=30)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=5e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Regressor()
    fit(net, args, rank, world)
    result = validate(net, args, rank, world)
    if rank == 0:
        print({k: round(v, 4) for k, v in result.items()}, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
