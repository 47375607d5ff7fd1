"""Evolution strategies: workers trade fitness values and draw everybody's noise from known seeds."""
import argparse

import torch
import torch.distributed as dist
from torch import nn


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, s):
        return self.net(s).tanh()


@torch.no_grad()
def rollout(policy, seed, batch=32, horizon=40):
    g = torch.Generator().manual_seed(seed)
    s = torch.randn(batch, 4, generator=g) * 0.5
    cost = 0.0
    for _ in range(horizon):
        u = policy(s).squeeze(1)
        pos, vel, ang, spin = s.unbind(1)
        spin = spin + 0.1 * (torch.sin(ang) - u)
        vel = vel + 0.1 * u
        s = torch.stack([pos + 0.1 * vel, vel, ang + 0.1 * spin, spin], 1)
        cost += (s[:, 2] ** 2 + 0.1 * s[:, 0] ** 2).mean().item()
    return -cost / horizon


def noise(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def ranks_of(f):
    order = torch.empty_like(f)
    order[f.argsort()] = torch.arange(len(f), dtype=f.dtype)
    return order / (len(f) - 1) - 0.5


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generations", type=int, default=30)
    p.add_argument("--pairs", type=int, default=6, help="mirrored pairs per worker")
    p.add_argument("--sigma", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=0.1)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = Controller()
    theta = nn.utils.parameters_to_vector(policy.parameters()).detach()
    opt = torch.optim.Adam([theta], lr=args.lr)
    total = args.pairs * world
    for gen in range(args.generations):
        seeds = [gen * 10_000 + k for k in range(total)]
        mine = torch.empty(args.pairs, 2)
        for j, seed in enumerate(seeds[rank * args.pairs:(rank + 1) * args.pairs]):
            eps = noise(seed, len(theta))
            for side, sign in enumerate((1.0, -1.0)):
                nn.utils.vector_to_parameters(theta + sign * args.sigma * eps, policy.parameters())
                mine[j, side] = rollout(policy, seed=gen)
        parts = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(parts, mine)
        fitness = torch.cat(parts)
        shaped = ranks_of(fitness.flatten()).view_as(fitness)
        step = sum((shaped[k, 0] - shaped[k, 1]) * noise(seeds[k], len(theta)) for k in range(total))
        theta.grad = -step / (2 * total * args.sigma)
        opt.step()
        if rank == 0 and gen % 6 == 0:
            print(f"generation {gen} mean fitness {fitness.mean():.4f} best {fitness.max():.4f}", flush=True)
    nn.utils.vector_to_parameters(theta, policy.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
