"""Trains a one-step surrogate next to a running domain-decomposed simulation."""
import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from grid import Strip
from solver import Burgers


def initial_state(strip, rows, cols, amp, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(rows).float()[:, None] / rows
    x = torch.arange(cols).float()[None, :] / cols
    u = torch.zeros(rows, cols)
    v = torch.zeros(rows, cols)
    for k in range(1, 4):
        a, b = torch.rand(2, generator=g) * 2 * math.pi
        u += torch.sin(2 * math.pi * k * y + a) * torch.cos(2 * math.pi * x + b) / k
        v += torch.cos(2 * math.pi * k * x + b) * torch.sin(2 * math.pi * y + a) / k
    bump = amp * torch.exp(-((y - 0.5) ** 2 + (x - 0.5) ** 2) / 0.004)
    full = torch.stack([0.5 * u + bump, 0.5 * v])
    return full[:, strip.start:strip.start + strip.n].clone()


def build_net(width):
    return nn.Sequential(
        nn.Conv2d(2, width, 3, padding=(0, 1), padding_mode="circular"), nn.GELU(),
        nn.Conv2d(width, width, 1), nn.GELU(), nn.Conv2d(width, 2, 1),
    )


def sum_grads(params):
    grads = [p.grad for p in params]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--rows", type=int, default=100)
    ap.add_argument("--cols", type=int, default=96)
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--spinup", type=int, default=3)
    ap.add_argument("--restarts", type=int, default=4)
    ap.add_argument("--dt", type=float, default=0.01)
    ap.add_argument("--max-amp", type=float, default=2.0)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    strip = Strip(args.rows, args.cols, rank, world)
    solver = Burgers(strip, dx=1.0 / args.cols)
    torch.manual_seed(0)
    net = build_net(args.width)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)

    for run in range(args.restarts):
        t0 = time.time()
        amp = args.max_amp * run / (args.restarts - 1)
        state = initial_state(strip, args.rows, args.cols, amp, seed=run)
        for _ in range(args.spinup):
            state, _ = solver.advance(state, args.dt)
        losses, n = [], 0
        for _ in range(args.steps):
            target, n = solver.advance(state, args.dt)
            padded = strip.exchange(state)
            pred = net(padded.unsqueeze(0))[0]
            loss = ((pred - (target - state) / args.dt) ** 2).sum() / (2 * args.rows * args.cols)
            opt.zero_grad()
            loss.backward()
            sum_grads(net.parameters())
            opt.step()
            losses.append(loss.item())
            state = target
        ends = torch.tensor([losses[0], losses[-1]])
        dist.all_reduce(ends)
        if rank == 0:
            print(f"run {run} amp {amp:.2f} substeps {n} loss {ends[0]:.4f} -> {ends[1]:.4f} "
                  f"({time.time() - t0:.1f}s)", flush=True)

    if rank == 0:
        torch.save(net.state_dict(), "surrogate.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
