"""Distributed DP-SGD: local clipping, distributed noise, secure-sum style all-reduce."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from privacy import PerSampleClipper, PoissonSampler


def build():
    return nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.GroupNorm(4, 16), nn.Tanh(), nn.Conv2d(16, 32, 3, 2, 1), nn.Tanh(),
                         nn.Flatten(), nn.Linear(32 * 16, 64), nn.Tanh(), nn.Linear(64, 6))


def records(n, seed):
    g = torch.Generator().manual_seed(30)
    proto = F.interpolate(torch.randn(6, 1, 4, 4, generator=g), size=16)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (n,), generator=g)
    return proto[y] + 0.8 * torch.randn(n, 1, 16, 16, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=110)
    ap.add_argument("--sample-rate", type=float, default=0.03)
    ap.add_argument("--sigma", type=float, default=0.8)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--lr", type=float, default=0.4)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = build()
    x, y = records(2000, 1)
    vx, vy = records(400, 2)
    # a hospital keeps its records, they are not of equal number
    bounds = [0] + [int(2000 * f) for f in torch.linspace(0.6, 1.4, world).div(world).cumsum(0).tolist()]
    x, y = x[bounds[rank]: bounds[rank + 1]], y[bounds[rank]: bounds[rank + 1]]
    expected = args.sample_rate * bounds[-1]
    clipper = PerSampleClipper(model, F.cross_entropy, args.clip)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    noise = torch.Generator().manual_seed(10 ** 6 + 7919 * rank)
    t0, seen = time.time(), 0
    for step, idx in enumerate(PoissonSampler(len(x), args.sample_rate, args.steps, seed=rank)):
        sums, clipped = clipper.clipped_sum(x[idx], y[idx])
        seen += len(idx)
        for p, s in zip(model.parameters(), sums):
            # W independent shares of variance (sigma C)^2 / W add up to the whole noise
            s += torch.randn(s.shape, generator=noise) * args.sigma * args.clip / world ** 0.5
            dist.all_reduce(s)
            p.grad = s / expected
        opt.step()
        if step % 15 == 0:
            with torch.no_grad():
                acc = (model(vx).argmax(1) == vy).float().mean().item()
            print(f"rank {rank} step {step} batch {len(idx)} clipped {clipped:.2f} acc {acc:.3f} {time.time() - t0:.1f}s", flush=True)
    print(f"rank {rank}: {seen / args.steps:.1f} samples per step on average, {args.sample_rate * len(x):.1f} expected", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(out, "dp_model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
