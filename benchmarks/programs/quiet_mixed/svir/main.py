import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from mirror import fetch, publish
from net import Gate
from reader import part_loader


def train(args, rank, world):
    cache = os.path.join(args.scratch, f"node{rank}")
    fetch(args.mirror, cache, client=rank)
    loader = part_loader(cache, rank, world, args.batch, args.seed)
    model = DDP(Gate(args.dim, 32))
    optim = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        good = torch.zeros(2)
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            good += torch.tensor([(logits.argmax(-1) == y).sum(), float(len(y))])
        dist.all_reduce(good)
        if rank == 0:
            print(f"epoch {epoch} accuracy {(good[0] / good[1]).item():.3f}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--mirror", default="mirror")
    p.add_argument("--scratch", default="scratch")
    p.add_argument("--parts", type=int, default=12)
    p.add_argument("--rows", type=int, default=48)
    p.add_argument("--dim", type=int, default=24)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=6)
    args = p.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        publish(args.mirror, args.parts, args.rows, args.dim)
    dist.barrier()
    torch.manual_seed(args.seed)
    train(args, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
