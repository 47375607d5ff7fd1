import argparse

import torch
import torch.distributed as dist
from torch import nn

from service import ScoringClient, ScoringService


def rollout(rank, epoch, n):
    g = torch.Generator().manual_seed(1000 * rank + epoch)
    policy_bias = 0.1 * rank
    for _ in range(n):
        yield torch.randn(8, generator=g) + policy_bias


def episode_lengths(epoch, workers):
    g = torch.Generator().manual_seed(epoch)
    extra = torch.randint(0, 4, (workers,), generator=g).tolist()
    return [64 + (16 * e if epoch < 3 else 12 * e) for e in extra]


def collect(client, rank, epoch, n):
    scores = []
    for row in rollout(rank, epoch, n):
        out = client.add(row)
        if out is not None:
            scores.append(out)
    if client.buffer:
        scores.append(client.flush())
    return torch.cat(scores)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    client = ScoringClient(args.batch_size)
    for epoch in range(args.epochs):
        lengths = episode_lengths(epoch, world - 1)
        mean = torch.zeros(1)
        if rank == 0:
            served = ScoringService(reference, [n // args.batch_size for n in lengths]).serve()
            print(f"epoch {epoch}: {served} batches scored", flush=True)
        else:
            mean += collect(client, rank, epoch, lengths[rank - 1]).mean()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: mean score {mean.item() / (world - 1):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
