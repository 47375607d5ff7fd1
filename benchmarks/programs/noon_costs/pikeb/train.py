import argparse
import math
import time

import torch
import torch.distributed as dist
from torch import nn


class PINN(nn.Module):
    """u(x, t) for the viscous Burgers equation on [-1, 1] x [0, 1]."""

    def __init__(self, width=96, depth=5):
        super().__init__()
        sizes = [2] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.out = nn.Linear(width, 1)
        for layer in [*self.hidden, self.out]:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)


class BurgersSolver:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.net = PINN(args.width, args.depth)
        self.params = list(self.net.parameters())
        self.optimizer = torch.optim.Adam(self.params, lr=args.lr)
        self.nu = 0.01 / math.pi
        self.gen = torch.Generator().manual_seed(args.seed * 100 + self.rank)

    def sample(self, n):
        x = torch.rand(n, 1, generator=self.gen) * 2 - 1
        t = torch.rand(n, 1, generator=self.gen)
        return x.requires_grad_(), t.requires_grad_()

    def residual(self, x, t):
        u = self.net(x, t)
        ones = torch.ones_like(u)
        u_x, u_t = torch.autograd.grad(u, (x, t), ones, create_graph=True)
        u_xx, = torch.autograd.grad(u_x, x, ones, create_graph=True)
        return u_t + u * u_x - self.nu * u_xx

    def loss(self):
        x, t = self.sample(self.args.collocation)
        pde = self.residual(x, t).pow(2).mean()
        x0 = torch.rand(self.args.boundary, 1, generator=self.gen) * 2 - 1
        initial = (self.net(x0, torch.zeros_like(x0)) + torch.sin(math.pi * x0)).pow(2).mean()
        tb = torch.rand(self.args.boundary, 1, generator=self.gen)
        wall = self.net(torch.ones_like(tb), tb).pow(2).mean() + self.net(-torch.ones_like(tb), tb).pow(2).mean()
        return pde + initial + wall, pde

    def zero_grad(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.data.zero_()

    def sync_grads(self):
        flat = torch.cat([p.grad.data.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 0
        for p in self.params:
            p.grad.data.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()

    def step(self):
        self.zero_grad()
        loss, pde = self.loss()
        loss.backward()
        self.sync_grads()
        self.optimizer.step()
        return loss.item(), pde.item()

    @torch.no_grad()
    def validate(self):
        axis_x, axis_t = torch.linspace(-1, 1, 128), torch.linspace(0, 1, 128)
        x, t = torch.meshgrid(axis_x, axis_t, indexing="ij")
        u = self.net(x.reshape(-1, 1), t.reshape(-1, 1)).view(128, 128)
        oddness = (u + u.flip(0)).abs().max()
        initial = (u[:, 0] + torch.sin(math.pi * axis_x)).abs().max()
        return initial.item(), oddness.item()

    def fit(self):
        t0 = time.time()
        best = math.inf
        for it in range(1, self.args.iters + 1):
            loss, pde = self.step()
            if it % 4 == 0:
                initial, oddness = self.validate()
                best = min(best, initial + oddness)
            if it % 20 == 0 and self.rank == 0:
                print(f"iter {it} loss {loss:.4e} pde {pde:.4e} best {best:.3f} {it / (time.time() - t0):.1f} it/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=140)
    parser.add_argument("--collocation", type=int, default=48)
    parser.add_argument("--boundary", type=int, default=24)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    BurgersSolver(args).fit()
    dist.destroy_process_group()
