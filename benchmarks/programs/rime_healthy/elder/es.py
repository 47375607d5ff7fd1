"""Evolution strategies on a cart-pole, seeds instead of gradients on the wire."""
import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cartpole import rollout


def centered_ranks(x):
    r = torch.empty_like(x)
    r[x.argsort()] = torch.arange(len(x), dtype=x.dtype)
    return r / (len(x) - 1) - 0.5


def noise(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(int(seed)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=15)
    ap.add_argument("--pairs-per-rank", type=int, default=8)
    ap.add_argument("--sigma", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--horizon", type=int, default=120)
    ap.add_argument("--envs", type=int, default=16)
    ap.add_argument("--out", default="es_log.jsonl")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    for p in policy.parameters():
        p.requires_grad_(False)
    theta = parameters_to_vector(policy.parameters()).clone()
    opt = torch.optim.Adam([theta], lr=args.lr)
    seeds_gen = torch.Generator().manual_seed(5000 + rank)

    def fitness(vec, episode_seed):
        vector_to_parameters(vec, policy.parameters())
        return rollout(policy, args.envs, args.horizon, episode_seed)

    for gen in range(args.generations):
        seeds = torch.randint(0, 2 ** 31 - 1, (args.pairs_per_rank,), generator=seeds_gen)
        scores = torch.empty(args.pairs_per_rank, 2)
        for i, s in enumerate(seeds.tolist()):
            eps = args.sigma * noise(s, len(theta))
            scores[i, 0] = fitness(theta + eps, episode_seed=gen)
            scores[i, 1] = fitness(theta - eps, episode_seed=gen)

        all_seeds = [torch.empty_like(seeds) for _ in range(world)]
        all_scores = [torch.empty_like(scores) for _ in range(world)]
        dist.all_gather(all_seeds, seeds)
        dist.all_gather(all_scores, scores)
        all_seeds, all_scores = torch.cat(all_seeds), torch.cat(all_scores)

        shaped = centered_ranks(all_scores.flatten()).view_as(all_scores)
        weight = shaped[:, 0] - shaped[:, 1]
        grad = torch.zeros_like(theta)
        for w, s in zip(weight, all_seeds):
            grad += w * noise(s, len(theta))
        theta.grad = -grad / (2 * len(all_seeds) * args.sigma)
        opt.step()

        if rank == 0:
            centre = fitness(theta, episode_seed=10 ** 6)
            row = {"gen": gen, "mean": all_scores.mean().item(), "best": all_scores.max().item(), "centre": centre}
            print(row, flush=True)
            with open(args.out, "a" if gen else "w") as f:
                f.write(json.dumps(row) + "\n")

    if rank == 0:
        vector_to_parameters(theta, policy.parameters())
        torch.save(policy.state_dict(), os.path.splitext(args.out)[0] + ".pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
