import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from gossip import PushSum


def make_task(seed, n, classes=10, dim=64):
    g = torch.Generator().manual_seed(4)
    centres = torch.randn(classes, 2, dim, generator=g) * 1.1
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    side = torch.randint(0, 2, (n,), generator=g)
    return centres[y, side] + torch.randn(n, dim, generator=g) * 1.6, y


def node_view(x, y, rank, world):
    """Skewed partition: the part of a node is dominated by few labels, together they cover the set."""
    order = torch.argsort(y * len(y) + torch.arange(len(y)))
    half = len(y) // 2
    skewed = order[torch.arange(len(y)) % 2 == 0].chunk(world)[rank]
    uniform = order[torch.arange(len(y)) % 2 == 1][rank::world]
    idx = torch.cat([skewed, uniform])
    assert len(idx) <= half
    return x[idx], y[idx]


def dispersion(params):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    mean = flat.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    gap = (flat - mean).norm() / mean.norm()
    gaps = [torch.empty_like(gap) for _ in range(dist.get_world_size())]
    dist.all_gather(gaps, gap)
    return [round(v.item(), 5) for v in gaps]


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=420)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--lr", type=float, default=0.08)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 10))
    x, y = node_view(*make_task(21, 12_000), rank, world)
    xt, yt = make_task(22, 3_000)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    gossip = PushSum(model.parameters())
    draw = torch.Generator().manual_seed(1000 + rank)

    perm, at = torch.randperm(len(x), generator=draw), 0
    for step in range(args.steps):
        for g in opt.param_groups:
            g["lr"] = args.lr * (1 - step / args.steps)
        if at + args.batch > len(perm):
            perm, at = torch.randperm(len(x), generator=draw), 0
        idx = perm[at:at + args.batch]
        at += args.batch
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        gossip.bias()
        opt.step()
        gossip.mix()
        gossip.debias()
        if step % 70 == 0:
            gaps = dispersion(model.parameters())
            logging.info("step %d loss %.4f mass %.6f spread %s", step, loss.item(), gossip.weight, gaps)

    logging.info("node accuracy %.4f", accuracy(model, xt, yt))
    mass = torch.tensor([gossip.weight])
    dist.all_reduce(mass)
    gossip.bias()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= mass
    logging.info("consensus accuracy %.4f total mass %.6f spread %s", accuracy(model, xt, yt), mass.item(), dispersion(model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
