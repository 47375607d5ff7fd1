"""Evolution strategies: processes exchange scores only and rebuild each other's perturbations from seeds."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from env import BalanceEnv

log = logging.getLogger("es")


def centered_ranks(values):
    ranks = torch.empty_like(values)
    ranks[values.argsort()] = torch.arange(len(values), dtype=values.dtype)
    return ranks / (len(values) - 1) - 0.5


class Strategy:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.policy = nn.Sequential(nn.Linear(4, args.hidden), nn.Tanh(), nn.Linear(args.hidden, 1))
        self.policy.requires_grad_(False)
        self.theta = parameters_to_vector(self.policy.parameters()).clone()
        self.velocity = torch.zeros_like(self.theta)
        self.env = BalanceEnv()

    def noise(self, generation, worker, pair):
        key = (self.args.seed * 1_000_003 + generation) * 4096 + worker * 64 + pair
        return torch.randn(self.theta.shape, generator=torch.Generator().manual_seed(key))

    def fitness(self, vector, starts):
        vector_to_parameters(vector, self.policy.parameters())
        return self.env.rollout(self.policy, starts)

    def generation(self, g):
        a = self.args
        starts = self.env.reset(a.starts, torch.Generator().manual_seed(50_000 + g))
        own = torch.empty(a.pairs, 2)
        for k in range(a.pairs):
            eps = self.noise(g, self.rank, k)
            own[k, 0] = self.fitness(self.theta + a.sigma * eps, starts)
            own[k, 1] = self.fitness(self.theta - a.sigma * eps, starts)
        gathered = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(gathered, own)
        scores = torch.stack(gathered)
        shaped = centered_ranks(scores.flatten()).view_as(scores)
        weight = shaped[..., 0] - shaped[..., 1]
        direction = torch.zeros_like(self.theta)
        for w in range(self.world):
            for k in range(a.pairs):
                direction += weight[w, k] * self.noise(g, w, k)
        direction /= 2 * self.world * a.pairs * a.sigma
        self.velocity.mul_(0.9).add_(direction, alpha=0.1)
        self.theta += a.lr * self.velocity - a.lr * a.weight_decay * self.theta
        return scores.mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generations", type=int, default=36)
    p.add_argument("--pairs", type=int, default=6)
    p.add_argument("--starts", type=int, default=48)
    p.add_argument("--hidden", type=int, default=24)
    p.add_argument("--sigma", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=0.15)
    p.add_argument("--weight_decay", type=float, default=0.002)
    p.add_argument("--seed", type=int, default=77)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    es = Strategy(args)
    for g in range(args.generations):
        mean = es.generation(g)
        if g % 5 == 0 and es.rank == 0:
            log.info("generation %2d mean return %.4f |theta| %.3f", g, mean, es.theta.norm())
    if es.rank == 0:
        starts = es.env.reset(512, torch.Generator().manual_seed(1))
        log.info("final return %.4f", es.fitness(es.theta, starts))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
