import math

import torch
import torch.distributed as dist
import torch.nn as nn


class PINN(nn.Module):
    def __init__(self, h=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))

    def forward(self, x):
        return self.net(x)


def collocation(rank, world, n=512):
    x = torch.linspace(0, math.pi, n).unsqueeze(1)
    return x[rank::world].clone().requires_grad_(True)


def residual(model, x):
    u = model(x)
    du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    return (du - torch.cos(x)).pow(2).mean() + u[:1].pow(2).mean() * 0.1


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = PINN()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    x = collocation(rank, world)
    calls = 0

    opt = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=12, history_size=10, line_search_fn="strong_wolfe")

    def closure():
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = residual(model, x)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()] + [loss.detach().view(1)])
        dist.all_reduce(flat)
        flat /= world
        i = 0
        for p in model.parameters():
            p.grad.copy_(flat[i : i + p.numel()].view_as(p))
            i += p.numel()
        return flat[-1].clone()

    for outer in range(12):
        loss = opt.step(closure)
        if rank == 0:
            print(f"outer {outer} loss {loss.item():.3e} evaluations {calls}", flush=True)
    dist.barrier()
    if rank == 0:
        torch.save(model.state_dict(), "pinn.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
