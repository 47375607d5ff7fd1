"""Decentralised SGD over a ring: no central gradient, neighbours average their weights."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from gossip import RingMixer

log = logging.getLogger("dpsgd")


class Spirals:
    def __init__(self, seed, arms=3):
        self.gen = torch.Generator().manual_seed(seed)
        self.arms = arms

    def batch(self, n):
        y = torch.randint(0, self.arms, (n,), generator=self.gen)
        r = torch.rand(n, generator=self.gen)
        phi = 4 * r + 2 * math.pi * y / self.arms + 0.15 * torch.randn(n, generator=self.gen)
        return torch.stack([r * phi.cos(), r * phi.sin()], dim=1), y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=21)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(2, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    mixer = RingMixer(model)
    data = Spirals(args.seed * 97 + rank)

    for step in range(args.steps):
        x, y = data.batch(args.batch)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        mixer.mix()
        if step % 50 == 0:
            mean, gap = loss.detach().clone(), mixer.consensus_distance()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %3d mean loss %.4f max distance to consensus %.4f", step, mean.item() / world, gap)

    mixer.average_all()
    x, y = Spirals(5).batch(2000)
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    if rank == 0:
        log.info("consensus model accuracy %.4f", acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
