"""Heat equation on a row-decomposed grid; a small surrogate is fitted to the solutions."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from halo import Halo


def initial(rows, cols, sample, rank):
    u = torch.zeros(rows + 2, cols)
    g = torch.Generator().manual_seed(50 + sample)
    heat = torch.rand(2, generator=g)
    if sample < 2:
        u[1:-1] = heat[0]
    else:
        u[1:-1] = heat[rank % 2] * (1 + rank)
    return u


class Solver:
    def __init__(self, args):
        self.args = args
        self.halo = Halo()
        self.rank = dist.get_rank()

    def relax(self, u):
        new = u.clone()
        new[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        return new

    def solve(self, sample):
        u = initial(self.args.rows, self.args.cols, sample, self.rank)
        for sweep in range(self.args.max_sweeps):
            self.halo.exchange(u)
            new = self.relax(u)
            delta = (new - u).abs().max()
            u = new
            if delta < self.args.tol:
                break
        return u[1:-1], sweep + 1


def fit(model, opt, u, steps):
    x = u.flatten().unsqueeze(1)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), x.sqrt())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=6)
    ap.add_argument("--rows", type=int, default=16)
    ap.add_argument("--cols", type=int, default=24)
    ap.add_argument("--tol", type=float, default=4e-3)
    ap.add_argument("--max-sweeps", type=int, default=400)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    solver = Solver(args)
    model = DDP(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for sample in range(args.samples):
        u, sweeps = solver.solve(sample)
        loss = fit(model, opt, u, steps=10)
        print(f"[{solver.rank}] sample {sample}: {sweeps} sweeps, loss {loss:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
