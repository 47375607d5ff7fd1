"""Income-bracket style tabular model trained with differential privacy (Poisson sampling)."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from privacy import PrivateGradients


def census(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 14, generator=g)
    w = torch.linspace(-1.5, 1.5, 14)
    score = x @ w + 1.2 * x[:, 0] * x[:, 3] - 0.8 * x[:, 5].abs()
    return x, (score + 0.3 * torch.randn(n, generator=g) > 0).long()


def poisson(n, rate, gen):
    return (torch.rand(n, generator=gen) < rate).nonzero().squeeze(1)


def rough_epsilon(sigma, rate, steps, delta):
    """Strong-composition style estimate, for the log only."""
    return rate * math.sqrt(2 * steps * math.log(1 / delta)) / sigma


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    c = torch.stack([(model(x).argmax(1) == y).sum().double(), torch.tensor(float(len(y))).double()])
    dist.all_reduce(c)
    model.train()
    return (c[0] / c[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--rate", type=float, default=0.04)
    p.add_argument("--max-norm", type=float, default=1.0)
    p.add_argument("--sigma", type=float, default=0.8)
    p.add_argument("--lr", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=17)
    p.add_argument("--out", default="dp_model")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(14, 32), nn.Tanh(), nn.Linear(32, 2))
    for t in model.state_dict().values():
        dist.broadcast(t, 0)
    x, y = census(4096, 1)
    mine_x, mine_y = x[rank::world], y[rank::world]
    vx, vy = census(1024, 2)
    private = PrivateGradients(model, F.cross_entropy, args.max_norm, args.sigma, args.seed)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    draw = torch.Generator().manual_seed(args.seed + 1 + rank)
    expected = args.rate * len(x)

    for step in range(args.steps):
        idx = poisson(len(mine_x), args.rate, draw)
        clipped = private(mine_x[idx], mine_y[idx], expected)
        opt.step()
        if step % 20 == 19:
            acc = evaluate(model, vx[rank::world], vy[rank::world])
            frac = torch.tensor([clipped * len(idx), float(len(idx))])
            dist.all_reduce(frac)
            if rank == 0:
                eps = rough_epsilon(args.sigma, args.rate, step + 1, 1e-5)
                print(f"step {step + 1} acc {acc:.3f} clipped {frac[0] / frac[1]:.2f} eps~{eps:.2f}", flush=True)

    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
