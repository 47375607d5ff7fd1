"""Physics informed network for a damped oscillator. Collocation points are spread over the ranks, L-BFGS sees the whole objective."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn


class Mlp(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        sizes = [1] + [width] * depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, t):
        for layer in self.layers[:-1]:
            t = torch.tanh(layer(t))
        return self.layers[-1](t)


def residual(net, t, delta=0.6, omega=3.0):
    t = t.clone().requires_grad_(True)
    u = net(t)
    du, = torch.autograd.grad(u.sum(), t, create_graph=True)
    ddu, = torch.autograd.grad(du.sum(), t, create_graph=True)
    return ddu + 2 * delta * du + omega ** 2 * u


def exact(t, delta=0.6, omega=3.0):
    w = math.sqrt(omega ** 2 - delta ** 2)
    return torch.exp(-delta * t) * (torch.cos(w * t) + delta / w * torch.sin(w * t))


class Problem:
    def __init__(self, net, points, t_max):
        rank, world = dist.get_rank(), dist.get_world_size()
        grid = torch.linspace(0, t_max, points, dtype=torch.float64).unsqueeze(1)
        self.mine, self.total = grid[rank::world], points
        self.net, self.rank = net, rank
        self.evals = 0

    def objective(self):
        part = residual(self.net, self.mine).pow(2).sum() / self.total
        if self.rank == 0:
            # initial conditions belong to one process only
            t0 = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
            u0 = self.net(t0)
            v0, = torch.autograd.grad(u0.sum(), t0, create_graph=True)
            part = part + 20 * ((u0 - 1).pow(2) + v0.pow(2)).squeeze()
        return part

    def closure(self):
        self.evals += 1
        self.net.zero_grad()
        part = self.objective()
        part.backward()
        value = part.detach().clone()
        for p in self.net.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
        dist.all_reduce(value)
        return value


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--outer", type=int, default=12)
    ap.add_argument("--inner", type=int, default=10)
    ap.add_argument("--points", type=int, default=301)
    ap.add_argument("--t-max", type=float, default=3.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Mlp().double()
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    problem = Problem(net, args.points, args.t_max)
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=args.inner, history_size=20, line_search_fn="strong_wolfe")
    t = torch.linspace(0, args.t_max, 200, dtype=torch.float64).unsqueeze(1)
    for k in range(args.outer):
        value = opt.step(problem.closure)
        if dist.get_rank() == 0:
            with torch.no_grad():
                err = (net(t) - exact(t)).abs().max().item()
            print(f"outer {k} objective {value.item():.3e} closure calls {problem.evals} max error {err:.3e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
