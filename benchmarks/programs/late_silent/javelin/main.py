"""Evolution strategies (Salimans et al. 2017): processes share seeds and scalars, never gradients."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector


class Cart:
    """Keep a cart near the origin of a windy track."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.pos = torch.randn(n, generator=g)
        self.vel = torch.zeros(n)
        self.wind = 0.3 * torch.randn(n, generator=g)

    def play(self, policy, steps=40):
        cost = torch.zeros(len(self.pos))
        for _ in range(steps):
            push = policy(torch.stack([self.pos, self.vel, self.wind], 1)).squeeze(1).tanh()
            self.vel = 0.95 * self.vel + 0.2 * (push + self.wind)
            self.pos = self.pos + 0.2 * self.vel
            cost += self.pos ** 2 + 0.05 * push ** 2
        return -cost.mean() / steps


class Search:
    def __init__(self, net, sigma, lr, pairs, seed):
        self.net, self.sigma, self.lr, self.pairs = net, sigma, lr, pairs
        self.theta = parameters_to_vector(net.parameters()).detach().clone()
        self.noise = torch.Generator().manual_seed(seed)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.m = torch.zeros_like(self.theta)

    def evaluate(self, theta, seed):
        at, weights = 0, {}
        for name, p in self.net.named_parameters():
            weights[name] = theta[at:at + p.numel()].view_as(p)
            at += p.numel()
        return Cart(32, seed).play(lambda o: functional_call(self.net, weights, (o,)))

    @torch.no_grad()
    def generation(self, number):
        eps = torch.randn(self.pairs, len(self.theta), generator=self.noise)
        mine = torch.zeros(self.pairs, 2)
        for i in range(self.rank, self.pairs, self.world):
            mine[i, 0] = self.evaluate(self.theta + self.sigma * eps[i], number * 1000 + i)
            mine[i, 1] = self.evaluate(self.theta - self.sigma * eps[i], number * 1000 + i)
        dist.all_reduce(mine)
        ranks = mine.flatten().argsort().argsort().float().view_as(mine)
        shaped = ranks / (ranks.numel() - 1) - 0.5
        grad = (shaped[:, 0] - shaped[:, 1]) @ eps / (self.pairs * self.sigma)
        self.m = 0.9 * self.m + 0.1 * grad
        self.theta += self.lr * self.m
        return mine.mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=40)
    ap.add_argument("--pairs", type=int, default=16)
    ap.add_argument("--sigma", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=0.08)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    search = Search(nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1)), args.sigma, args.lr, args.pairs, args.seed)
    for n in range(1, args.generations + 1):
        fitness = search.generation(n)
        if search.rank == 0 and n % 8 == 0:
            print(f"generation {n} fitness {fitness:.4f}", flush=True)
    if search.rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(search.theta, args.out / "theta.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
