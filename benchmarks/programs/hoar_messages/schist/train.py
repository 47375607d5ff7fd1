import argparse
import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from domain import Strip
from surrogate import Surrogate, flow_field


def stable_dt(flow, cfl):
    return cfl / flow.abs().max().item()


def simulate(strip, flow, interval, cfl):
    """Advance by one output interval, in as many steps as stability asks for."""
    n = math.ceil(interval / stable_dt(flow, cfl))
    dt = interval / n
    for _ in range(n):
        strip.advance(flow, dt)
    return n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=12)
    ap.add_argument("--cols", type=int, default=32)
    ap.add_argument("--intervals", type=int, default=20)
    ap.add_argument("--interval", type=float, default=4.0)
    ap.add_argument("--cfl", type=float, default=0.5)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    flow = flow_field(rank, world, args.rows, args.cols)
    strip = Strip(args.rows, args.cols)
    strip.u[1:-1, 8:16] = 1.0
    torch.manual_seed(0)
    model = DDP(Surrogate())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    for k in range(args.intervals):
        before = strip.u[1:-1].clone()
        n = simulate(strip, flow, args.interval, args.cfl)
        loss = torch.nn.functional.mse_loss(model(before), strip.u[1:-1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if k % 5 == 0:
            print(f"[{rank}] interval {k}: {n} solver steps, loss {loss.item():.5f}", flush=True)
    mass = strip.u[1:-1].sum()
    dist.all_reduce(mass)
    if rank == 0:
        print("total mass", mass.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
