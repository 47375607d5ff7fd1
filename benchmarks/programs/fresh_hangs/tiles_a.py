"""Neighbour averaging on a ring: each rank fits its own tile and agrees with both neighbours."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class Tile(nn.Module):
    """A local field with a piece of its own and one border per neighbour."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Parameter(torch.zeros(30))
        self.left = nn.Parameter(torch.zeros(4))
        self.right = nn.Parameter(torch.zeros(4))

    def forward(self):
        return torch.cat([self.left, self.inner, self.right])


class Ring:
    """One group for each edge of the ring; edge k lies between k and its successor."""

    def __init__(self, rank, world):
        edges = [dist.new_group(sorted({k, (k + 1) % world})) for k in range(world)]
        self.left_edge = (rank - 1) % world
        self.right_edge = rank
        self.edges = edges

    def order(self):
        return [self.right_edge, self.left_edge]

    def settle(self, tile):
        border = {self.right_edge: tile.right, self.left_edge: tile.left}
        for edge in self.order():
            values = border[edge].data
            dist.all_reduce(values, group=self.edges[edge])
            values /= 2


def target_for(rank, world, size):
    span = torch.linspace(rank / world, (rank + 1) / world, size)
    return torch.sin(span * 6.2832)


def fit(tile, target, optimizer, steps):
    for _ in range(steps):
        time.sleep(0.05)
        loss = ((tile() - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    tile = Tile()
    ring = Ring(rank, world)
    target = target_for(rank, world, 38)
    optimizer = torch.optim.SGD(tile.parameters(), lr=2.0)
    for number in range(args.rounds):
        loss = fit(tile, target, optimizer, args.steps)
        ring.settle(tile)
        if number % 4 == 0:
            print(f"[{rank}] round {number} loss {loss:.4f}", flush=True)

    fields = [torch.empty(38) for _ in range(world)]
    dist.all_gather(fields, tile().detach())
    if rank == 0:
        print("range", torch.cat(fields).min().item(), torch.cat(fields).max().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
