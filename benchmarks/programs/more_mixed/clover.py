"""Federated averaging: every rank is a site with its own data and participation."""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

SIZES = [160, 288, 416, 224]


class Site:
    def __init__(self, rank):
        g = torch.Generator().manual_seed(rank)
        n = SIZES[rank % len(SIZES)]
        y = (torch.rand(n, generator=g) ** (1 + rank) * 3).long().clamp(max=2)
        x = torch.randn(n, 9, generator=g) + F.one_hot(y, 9) * 2 + 0.2 * rank
        self.n = n
        self.loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True,
                                 generator=torch.Generator().manual_seed(50 + rank))

    def train(self, model, epochs, lr):
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        steps = 0
        for _ in range(epochs):
            for x, y in self.loader:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                steps += 1
        return loss.item(), steps


def choose(rng, world, fraction):
    return sorted(rng.sample(range(world), max(2, int(world * fraction))))


def aggregate(global_vec, model, weight):
    delta = (parameters_to_vector(model.parameters()).detach() - global_vec) * weight
    total = torch.cat([delta, torch.tensor([float(weight)])])
    dist.all_reduce(total)
    return global_vec + total[:-1] / total[-1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--local-epochs", type=int, default=2)
    ap.add_argument("--fraction", type=float, default=0.7)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rng = random.Random(2024)
    torch.manual_seed(30)
    model = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 3))
    site = Site(rank)
    vec = parameters_to_vector(model.parameters()).detach().clone()
    for r in range(args.rounds):
        picked = choose(rng, world, args.fraction)
        vector_to_parameters(vec.clone(), model.parameters())
        loss, steps = (0.0, 0)
        if rank in picked:
            loss, steps = site.train(model, args.local_epochs, lr=0.1)
        vec = aggregate(vec, model, site.n if rank in picked else 0)
        stats = [None] * world
        dist.all_gather_object(stats, (round(loss, 4), steps))
        if rank == 0:
            print(f"round {r} sites {picked} {stats}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
