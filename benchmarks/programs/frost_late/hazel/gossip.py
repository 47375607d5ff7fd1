"""Gossip averaging: pairs of ranks average their weights by turns."""
import argparse
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lazy import LazyGroups


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--local-steps", type=int, default=4)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = list(itertools.combinations(range(world), 2))
    groups = LazyGroups()
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(7 + rank)
    for r in range(a.rounds):
        for _ in range(a.local_steps):
            x = torch.randn(32, 6, generator=gen)
            loss = nn.functional.mse_loss(net(x), x.abs().sum(1, keepdim=True) / 6)
            opt.zero_grad()
            loss.backward()
            opt.step()
        pair = pairs[r % len(pairs)]
        group = groups.get(pair)
        if rank in pair:
            vec = parameters_to_vector(net.parameters()).detach()
            dist.all_reduce(vec, group=group)
            vector_to_parameters(vec / 2, net.parameters())
    vec = parameters_to_vector(net.parameters()).detach()
    dist.all_reduce(vec)
    vector_to_parameters(vec / world, net.parameters())
    print(f"rank {rank} loss {loss.item():.4f} consensus {(vec / world).norm().item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
