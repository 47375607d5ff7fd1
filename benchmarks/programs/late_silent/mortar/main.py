"""A regression over a mixture of regimes with a routed (expert-parallel) network."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from experts import RoutedFeedForward


def regimes(n, dim, kinds, seed):
    g = torch.Generator().manual_seed(seed)
    centres = 2.5 * torch.randn(kinds, dim, generator=torch.Generator().manual_seed(1))
    maps = torch.randn(kinds, dim, 3, generator=torch.Generator().manual_seed(2)) / dim ** 0.5
    k = torch.randint(0, kinds, (n,), generator=g)
    x = centres[k] + torch.randn(n, dim, generator=g)
    y = torch.tanh(torch.einsum("nd,ndo->no", x, maps[k])) + 0.05 * torch.randn(n, 3, generator=g)
    return x, y


class Model(nn.Module):
    def __init__(self, dim, width, per_rank, capacity):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.routed = RoutedFeedForward(width, 2 * width, per_rank, capacity)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        h, balance = self.routed(F.gelu(self.inp(x)))
        return self.out(self.norm(h)), balance


def start_weights(model, seed, rank):
    for name, p in model.named_parameters():
        if ".experts." in name:
            continue
        dist.broadcast(p.data, src=0)


def average_gradients(model, world):
    for name, p in model.named_parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def save(model, path, rank):
    own = {k: v for k, v in model.state_dict().items() if rank == 0 or ".experts." in k}
    torch.save(own, path / f"shard{rank}.pt")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--per-rank", type=int, default=2)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=14)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed * 100 + rank)
    model = Model(8, args.width, args.per_rank, capacity=args.batch)
    start_weights(model, args.seed, rank)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    x, y = regimes(8192, 8, 2 * world, args.seed)
    xv, yv = regimes(512, 8, 2 * world, args.seed + 1)
    args.out.mkdir(parents=True, exist_ok=True)

    meter = torch.zeros(2)
    for step in range(1, args.steps + 1):
        g = torch.Generator().manual_seed(args.seed + step)
        pick = torch.randint(0, len(x), (world, args.batch), generator=g)[rank]
        pred, balance = model(x[pick])
        mse = F.mse_loss(pred, y[pick])
        opt.zero_grad()
        (mse + 0.02 * balance).backward()
        average_gradients(model, world)
        opt.step()
        meter += torch.tensor([mse.item(), 1.0])
        if step % 40 == 0:
            dist.all_reduce(meter)
            errs = []
            with torch.no_grad():
                for part in range(rank * 64, len(xv), world * 64):
                    errs.append(F.mse_loss(model(xv[part:part + 64])[0], yv[part:part + 64]))
            val = torch.stack(errs).mean()
            dist.all_reduce(val)
            if rank == 0:
                print(f"step {step} mse {meter[0] / meter[1]:.4f} val {val / world:.4f} balance {balance.item():.2f}", flush=True)
            meter.zero_()
    save(model, args.out, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
