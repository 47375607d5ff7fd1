import argparse
import itertools
import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from pool import Farm


def load_data(seed=21):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(3000, 30, generator=g)
    w = torch.randn(30, generator=g)
    y = ((x @ w) * torch.cos(x[:, 0]) > 0).long()
    return (x[:2400], y[:2400]), (x[2400:], y[2400:])


def train_once(params, data, steps):
    lr, hidden, decay, length = params
    (x, y), (xv, yv) = data
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, int(hidden)), nn.ReLU(),
                        nn.Linear(int(hidden), int(hidden)), nn.ReLU(), nn.Linear(int(hidden), 2))
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=decay)
    g = torch.Generator().manual_seed(4)
    for _ in range(int(steps * length)):
        idx = torch.randint(0, len(x), (128,), generator=g)
        loss = F.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return (net(xv).argmax(1) == yv).float().mean().item()


def main():
    p = argparse.ArgumentParser(description="one long reference run and a grid of short ones on a pool of workers")
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--reference", type=float, default=8.0, help="length of the reference run")
    p.add_argument("--lrs", type=float, nargs="+", default=[1e-3, 3e-3])
    p.add_argument("--hidden", type=int, nargs="+", default=[64, 192])
    p.add_argument("--decay", type=float, nargs="+", default=[0.0, 0.05])
    p.add_argument("--out", default="sweep.json")
    args = p.parse_args()

    dist.init_process_group("gloo")
    farm = Farm(n_features=4)
    if farm.rank == 0:
        grid = [(3e-4, 256, 0.01, args.reference)]
        grid += itertools.product(args.lrs, args.hidden, args.decay, [1.0])
        scores = farm.drive(grid)
        best = max(range(len(grid)), key=scores.__getitem__)
        with open(args.out, "w") as f:
            json.dump([{"params": g, "score": s} for g, s in zip(grid, scores)], f, indent=1)
        print(f"{len(grid)} settings, best {grid[best]} with accuracy {scores[best]:.4f}", flush=True)
        served = 0
    else:
        data = load_data()
        served = farm.serve(lambda params: train_once(params, data, args.steps))
    counts = [None] * farm.world if farm.rank == 0 else None
    dist.gather_object(served, counts, dst=0)
    if farm.rank == 0:
        print("tasks per worker:", counts[1:], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
