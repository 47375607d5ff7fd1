"""Evolution strategies: ranks try perturbations, only rewards are exchanged."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Cart:
    """A point mass on a line that shall come to rest at the origin."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.pos, self.vel = (torch.rand(2, generator=g) * 2 - 1).tolist()

    def step(self, force):
        self.vel += 0.1 * max(-1.0, min(1.0, force))
        self.pos += 0.1 * self.vel
        cost = self.pos ** 2 + 0.1 * self.vel ** 2
        return cost, abs(self.pos) > 3


def play(policy, seed, limit=40):
    env, total = Cart(seed), 0.0
    with torch.no_grad():
        for _ in range(limit):
            out = policy(torch.tensor([env.pos, env.vel]))
            cost, over = env.step(out.item())
            total -= cost
            if over:
                return total - 20
    return total


def direction(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=18)
    ap.add_argument("--pairs", type=int, default=4, help="mirrored pairs per rank")
    ap.add_argument("--sigma", type=float, default=0.3)
    ap.add_argument("--lr", type=float, default=0.2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    theta = parameters_to_vector(policy.parameters()).detach().clone()
    theta.requires_grad_(True)
    opt = torch.optim.Adam([theta], lr=args.lr)
    n = theta.numel()

    for gen in range(args.generations):
        scores = torch.zeros(args.pairs, 2)
        for k in range(args.pairs):
            seed = (gen * world + rank) * args.pairs + k
            eps = direction(seed, n)
            for j, sign in enumerate((1, -1)):
                vector_to_parameters(theta.detach() + sign * args.sigma * eps, policy.parameters())
                scores[k, j] = play(policy, seed=10_000 + seed)
        everyone = [torch.empty_like(scores) for _ in range(world)]
        dist.all_gather(everyone, scores)
        table = torch.stack(everyone)
        ranks = table.flatten().argsort().argsort().float().view_as(table)
        ranks = ranks / (ranks.numel() - 1) - 0.5
        grad = torch.zeros(n)
        for r in range(world):
            for k in range(args.pairs):
                eps = direction((gen * world + r) * args.pairs + k, n)
                grad += (ranks[r, k, 0] - ranks[r, k, 1]) * eps
        theta.grad = -grad / (world * args.pairs * args.sigma)
        opt.step()
        if rank == 0 and gen % 6 == 0:
            print(f"generation {gen} mean return {table.mean():.2f} best {table.max():.2f}", flush=True)
    vector_to_parameters(theta.detach(), policy.parameters())
    if rank == 0:
        print(f"final return {play(policy, 1):.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
