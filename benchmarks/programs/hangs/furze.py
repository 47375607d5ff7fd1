"""Cohorts train alone: each group is made and used by its members only."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Cohort:
    """A group that only its members know of."""

    def __init__(self, name, ranks):
        self.name, self.ranks = name, ranks
        self.group = dist.new_group(ranks, use_local_synchronization=True, group_desc=name)

    @property
    def chief(self):
        return dist.get_rank(self.group) == 0

    def average(self, tensors):
        size = dist.get_world_size(self.group)
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.group)
            tensor.div_(size)

    def share(self, model):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=self.ranks[0], group=self.group)


def assign(rank, world):
    """Three ranks work on the large model, one on the small."""
    large = list(range(world - 1))
    return ("large", large) if rank in large else ("small", [world - 1])


def train(cohort, args, rank):
    width = 64 if cohort.name == "large" else 8
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 2))
    cohort.share(model)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps = args.steps if cohort.name == "large" else args.steps * 4
    for step in range(steps):
        x = torch.randn(32, 10, generator=torch.Generator().manual_seed(step * 7 + rank))
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), (x.sum(dim=1) > 0).long())
        loss.backward()
        cohort.average([p.grad for p in model.parameters()])
        opt.step()
        if cohort.name == "small" and step % 10 == 0:
            cohort.average([loss.detach()])
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    name, ranks = assign(rank, world)
    cohort = Cohort(name, ranks)
    loss = train(cohort, args, rank)
    if cohort.chief:
        print(f"{cohort.name}: loss {loss:.3f}", flush=True)
    results = [None] * world
    dist.all_gather_object(results, {"cohort": name, "loss": round(loss, 4)})
    if rank == 0:
        print(results, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
