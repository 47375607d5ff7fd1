"""Evolution strategies (Salimans et al. 2017) on a small continuous-control toy.

Workers never exchange parameters: every worker draws its own mirrored perturbations from a seed,
evaluates them, and only (seed, fitness) pairs are gathered. Each worker then rebuilds *all* the
noise vectors from the seeds and applies the same update.
"""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Policy(nn.Module):
    def __init__(self, obs=6, act=2, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, act))
        for p in self.parameters():
            p.requires_grad_(False)          # gradient-free

    def forward(self, x):
        return torch.tanh(self.net(x))


class Reacher:
    """A batch of point masses that have to reach and hold a moving target."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.pos = torch.randn(n, 2, generator=g)
        self.vel = torch.zeros(n, 2)
        self.goal = torch.randn(n, 2, generator=g)

    def obs(self):
        return torch.cat([self.goal - self.pos, self.vel, self.goal], 1)

    def step(self, a):
        self.vel = 0.9 * self.vel + 0.2 * a
        self.pos = self.pos + 0.1 * self.vel
        return -(self.goal - self.pos).norm(dim=1) - 0.01 * a.pow(2).sum(1)


def rollout(policy, seed, horizon, n_env):
    env, total = Reacher(n_env, seed), 0.0
    for _ in range(horizon):
        total += env.step(policy(env.obs())).mean().item()
    return total


def centered_ranks(x):
    ranks = torch.empty(len(x))
    ranks[x.argsort()] = torch.arange(len(x), dtype=torch.float)
    return ranks / (len(x) - 1) - 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=40)
    ap.add_argument("--pairs", type=int, default=8, help="mirrored pairs per worker and generation")
    ap.add_argument("--sigma", type=float, default=0.08)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--horizon", type=int, default=40)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    policy = Policy()
    theta = nn.Parameter(parameters_to_vector(policy.parameters()))
    opt = torch.optim.Adam([theta], lr=args.lr)
    seeds_rng = np.random.RandomState(1000 + rank)   # private: every worker explores elsewhere
    for gen in range(args.generations):
        t0 = time.time()
        rows = []
        for _ in range(args.pairs):
            seed = int(seeds_rng.randint(2 ** 31))
            eps = torch.randn(theta.numel(), generator=torch.Generator().manual_seed(seed))
            fit = []
            for sign in (1.0, -1.0):
                vector_to_parameters(theta.detach() + sign * args.sigma * eps, policy.parameters())
                fit.append(rollout(policy, gen, args.horizon, 16))   # common random numbers for the env
            rows.append([float(seed), *fit])
        local = torch.tensor(rows, dtype=torch.float64)
        table = [torch.empty_like(local) for _ in range(world)]
        dist.all_gather(table, local)
        table = torch.cat(table)
        shaped = centered_ranks(table[:, 1:].flatten().float()).view(-1, 2)
        grad = torch.zeros_like(theta)
        for (seed, _, _), (up, down) in zip(table.tolist(), shaped):
            eps = torch.randn(theta.numel(), generator=torch.Generator().manual_seed(int(seed)))
            grad += (up - down) * eps
        theta.grad = -grad / (len(table) * args.sigma)
        opt.step()
        if gen % 10 == 0 or gen == args.generations - 1:
            vector_to_parameters(theta.detach(), policy.parameters())
            score = rollout(policy, 10 ** 6 + rank, args.horizon, 64)
            print(f"worker {rank} gen {gen} best {table[:, 1:].max():.2f} mean {table[:, 1:].mean():.2f} "
                  f"eval {score:.2f} ({time.time() - t0:.2f}s)", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        vector_to_parameters(theta.detach(), policy.parameters())
        torch.save(policy.state_dict(), os.path.join(out, "policy.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
