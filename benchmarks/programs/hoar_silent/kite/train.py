"""Physics informed fit of u'' + u = 0, u(0)=0, u'(0)=1, collocation points divided over the ranks."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, t):
        return self.net(t)


def derivative(u, t):
    return torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]


def residual_loss(model, t):
    t = t.requires_grad_(True)
    u = model(t)
    du = derivative(u, t)
    ddu = derivative(du, t)
    zero = torch.zeros(1, 1, requires_grad=True)
    u0 = model(zero)
    du0 = derivative(u0, zero)
    return (ddu + u).pow(2).mean() + 5 * (u0.pow(2).sum() + (du0 - 1).pow(2).sum())


class Closure:
    def __init__(self, model, opt, points):
        self.model, self.opt, self.points = model, opt, points
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.opt.zero_grad()
        loss = residual_loss(self.model, self.points.clone())
        loss.backward()
        world = dist.get_world_size()
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()] + [loss.detach()[None]])
        dist.all_reduce(flat)
        flat /= world
        nn.utils.vector_to_parameters(flat[:-1], [p.grad for p in self.model.parameters()])
        return flat[-1].clone()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--outer", type=int, default=20)
    ap.add_argument("--points", type=int, default=128)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = Field()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=5, history_size=20, line_search_fn="strong_wolfe")
    points = torch.linspace(0, math.pi, args.points)[rank::world, None]
    closure = Closure(model, opt, points)
    for it in range(1, args.outer + 1):
        loss = opt.step(closure)
        if rank == 0 and it % 4 == 0:
            print(f"outer {it} evaluations {closure.calls} loss {float(loss):.3e}", flush=True)
    with torch.no_grad():
        t = torch.linspace(0, math.pi, 50)[:, None]
        err = (model(t) - t.sin()).abs().max()
    if rank == 0:
        print(f"max error {err.item():.2e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
