"""Poisson equation on the unit interval; collocation points are split over the ranks, L-BFGS with a shared closure."""
import torch
import torch.distributed as dist
from torch import nn


class MLP(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        dims = [1] + [width] * depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


class Problem:
    def __init__(self, rank, world, n=240):
        pts = torch.linspace(0, 1, n, dtype=torch.float64)[1:-1]
        self.x = pts[rank::world].view(-1, 1).clone().requires_grad_(True)
        self.total = len(pts)
        self.edge = torch.tensor([[0.0], [1.0]], dtype=torch.float64)

    def residual(self, net):
        u = net(self.x)
        du = torch.autograd.grad(u.sum(), self.x, create_graph=True)[0]
        d2 = torch.autograd.grad(du.sum(), self.x, create_graph=True)[0]
        f = -(torch.pi ** 2) * torch.sin(torch.pi * self.x)
        return (d2 - f).pow(2).sum() / self.total

    def boundary(self, net):
        return net(self.edge).pow(2).mean() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    net = MLP().double()
    prob = Problem(rank, world)
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=15, history_size=20, line_search_fn="strong_wolfe")
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = prob.residual(net) + 10 * prob.boundary(net)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()] + [loss.detach().view(1)])
        dist.all_reduce(flat)
        i = 0
        for p in net.parameters():
            p.grad.copy_(flat[i:i + p.numel()].view_as(p))
            i += p.numel()
        return flat[-1]

    for it in range(6):
        loss = opt.step(closure)
        if rank == 0:
            print(f"outer {it} closure calls {calls} loss {loss.item():.3e}", flush=True)
    grid = torch.linspace(0, 1, 50, dtype=torch.float64).view(-1, 1)
    with torch.no_grad():
        err = (net(grid) - torch.sin(torch.pi * grid)).abs().max()
    if rank == 0:
        print(f"max error {err.item():.2e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
