import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def draw(seed, size):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def centred_ranks(scores):
    order = scores.argsort().argsort().float()
    return order / (len(scores) - 1) - 0.5


@torch.no_grad()
def score(model, theta, x, y):
    vector_to_parameters(theta, model.parameters())
    return -F.cross_entropy(model(x), y)


def evaluate_own(model, theta, seeds, sigma, x, y):
    result = []
    for seed in seeds:
        eps = draw(seed, theta.numel())
        result += [score(model, theta + sigma * eps, x, y), score(model, theta - sigma * eps, x, y)]
    return torch.stack(result)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generations", type=int, default=20)
    p.add_argument("--pairs", type=int, default=12)
    p.add_argument("--sigma", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(40)
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 3))
    g = torch.Generator().manual_seed(1)
    x = torch.randn(600, 10, generator=g)
    y = x[:, :3].argmax(1)

    theta = parameters_to_vector(model.parameters()).detach().clone()
    dist.broadcast(theta, src=0)
    centre = nn.Parameter(theta)
    opt = torch.optim.Adam([centre], lr=0.03)
    for generation in range(args.generations):
        first = generation * world * args.pairs
        batch = torch.randint(0, len(x), (200,), generator=g)
        own = range(first + rank * args.pairs, first + (rank + 1) * args.pairs)
        mine = evaluate_own(model, centre.data, own, args.sigma, x[batch], y[batch])
        parts = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(parts, mine)
        fitness = centred_ranks(torch.cat(parts)).view(-1, 2)
        direction = torch.zeros_like(centre)
        for k in range(world * args.pairs):
            direction += (fitness[k, 0] - fitness[k, 1]) * draw(first + k, direction.numel())
        centre.grad = -direction / (2 * world * args.pairs * args.sigma)
        opt.step()
        if rank == 0 and generation % 5 == 4:
            print(f"generation {generation} best {torch.cat(parts).max().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
