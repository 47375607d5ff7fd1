import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from population import Population


def spirals(n, arms, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, arms, (n,), generator=g)
    r = torch.rand(n, generator=g) * 0.9 + 0.1
    a = r * 7 + y * (6.2832 / arms) + torch.randn(n, generator=g) * 0.12
    xy = torch.stack([r * a.cos(), r * a.sin()], 1)
    freq = torch.arange(1, 9).float()
    return torch.cat([torch.sin(xy[:, :1] * freq), torch.cos(xy[:, 1:] * freq), xy], 1), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--interval", type=int, default=60)
    ap.add_argument("--batch", type=int, default=128)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(900 + rank)       # members start from different weights
    model = nn.Sequential(nn.Linear(18, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 6))
    lr = 10 ** torch.empty(1).uniform_(-3.5, -0.5).item()
    wd = 10 ** torch.empty(1).uniform_(-6, -3).item()
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=wd)
    pop = Population(model, opt, seed=31)
    x, y = spirals(9000, 6, 1)
    xv, yv = spirals(2000, 6, 2)

    for rnd in range(args.rounds):
        for _ in range(args.interval):
            idx = torch.randint(0, len(x), (args.batch,))
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
        with torch.no_grad():
            acc = (model(xv).argmax(1) == yv).float().mean().item()
        scores = pop.evolve(acc)
        group = opt.param_groups[0]
        settings = [None] * world
        dist.all_gather_object(settings, (round(group["lr"], 5), round(group["weight_decay"], 7)))
        logging.info("round %d scores %s settings %s", rnd, [round(s, 4) for s in scores.tolist()], settings)

    with torch.no_grad():
        final = torch.zeros(world)
        final[rank] = (model(xv).argmax(1) == yv).float().mean()
    dist.all_reduce(final)
    best = int(final.argmax())
    for p in model.parameters():
        dist.broadcast(p.data, src=best)
    logging.info("exporting member %d with %.4f, took over %s", best, final[best], pop.history)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
