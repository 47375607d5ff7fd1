"""Physics-informed fit of a damped wave with L-BFGS; collocation points are split over processes."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        mods = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            mods += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*mods, nn.Linear(width, 1))

    def forward(self, xt):
        return self.net(xt)


def residual(field, xt, damping=0.5, speed=1.0):
    xt = xt.requires_grad_(True)
    u = field(xt)
    d1, = torch.autograd.grad(u.sum(), xt, create_graph=True)
    uxx, = torch.autograd.grad(d1[:, 0].sum(), xt, create_graph=True)
    utt, = torch.autograd.grad(d1[:, 1].sum(), xt, create_graph=True)
    return utt[:, 1] + damping * d1[:, 1] - speed ** 2 * uxx[:, 0]


class Problem:
    """Every process owns a different, differently sized share of the points."""

    def __init__(self, points, boundary, seed):
        g = torch.Generator().manual_seed(seed)
        rank, world = dist.get_rank(), dist.get_world_size()
        inner = torch.rand(points, 2, generator=g)
        x0 = torch.rand(boundary, 1, generator=g)
        start = torch.cat([x0, torch.zeros_like(x0)], 1)
        t0 = torch.rand(boundary, 1, generator=g)
        walls = torch.cat([torch.cat([torch.zeros_like(t0), t0], 1), torch.cat([torch.ones_like(t0), t0], 1)])
        self.counts = (points, boundary, 2 * boundary)
        self.inner = inner.tensor_split(world)[rank]
        self.start = start.tensor_split(world)[rank]
        self.walls = walls.tensor_split(world)[rank]

    def loss_share(self, field):
        n_in, n_st, n_wall = self.counts
        pde = residual(field, self.inner.clone()).pow(2).sum() / n_in
        init = (field(self.start) - torch.sin(torch.pi * self.start[:, :1])).pow(2).sum() / n_st
        wall = field(self.walls).pow(2).sum() / n_wall
        return pde + 10 * init + 10 * wall


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--outer", type=int, default=8)
    ap.add_argument("--inner", type=int, default=10)
    ap.add_argument("--points", type=int, default=3001)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    field = Field()
    problem = Problem(args.points, 401, seed=5)
    opt = torch.optim.LBFGS(field.parameters(), lr=1.0, max_iter=args.inner, history_size=20, line_search_fn="strong_wolfe")
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = problem.loss_share(field)
        loss.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in field.parameters()] + [loss.detach().reshape(1)])
        dist.all_reduce(flat)
        offset = 0
        for p in field.parameters():
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        return flat[-1]

    for it in range(args.outer):
        loss = opt.step(closure)
        if dist.get_rank() == 0:
            print(f"outer {it} loss {loss.item():.6f} evaluations {calls}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
