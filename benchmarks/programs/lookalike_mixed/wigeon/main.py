import itertools
import random
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn

from settings import fetch

LIMIT = timedelta(seconds=18)


def all_groups(world, seed):
    sets = [s for k in (1, 2, 3) for s in itertools.combinations(range(world), k)]
    random.Random(seed).shuffle(sets)
    return {s: dist.new_group(list(s), timeout=LIMIT) for s in sets}


def average(model, group):
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)


def main():
    dist.init_process_group("gloo", timeout=LIMIT)
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = all_groups(world, seed=2024)
    lr = float(fetch("override/lr", default="0.05", seconds=1.5))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    plan = random.Random(7)
    g = torch.Generator().manual_seed(90 + rank)
    peak = 0.0
    for step in range(40):
        x = torch.randn(16, 9, generator=g)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), x[:, 0].abs())
        loss.backward()
        average(model, groups[tuple(range(world))])
        opt.step()
        chosen = plan.choice(sorted(groups))
        if rank in chosen:
            worst = loss.detach().clone()
            dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=groups[chosen])
            peak = max(peak, float(worst))
    if rank == 0:
        print(f"lr {lr} peak {peak:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
