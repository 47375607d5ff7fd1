import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from monitor import Monitor, Reporter


def trainers(args, rank, group):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1)), process_group=group)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    rep = Reporter(dst=dist.get_world_size() - 1)
    gen = torch.Generator().manual_seed(rank)
    for epoch in range(args.epochs):
        for step in range(args.steps):
            x = torch.randn(16, 6, generator=gen)
            loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 or step % 3 == 0:
                rep.report(step, loss.item())
        rep.settle()
        stop = torch.zeros(1)
        if rank == 0:
            stop += float(loss.item() < args.target)
        dist.broadcast(stop, src=0, group=group)
        if epoch % 2 == 1:
            dist.barrier(group=group)
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--nap", type=float, default=4.5)
    ap.add_argument("--target", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workers = list(range(world - 1))
    group = dist.new_group(workers)
    if rank in workers:
        final = trainers(args, rank, group)
    else:
        Monitor(workers, args.nap).run(args.epochs)
        final = float("nan")
    everyone = [None] * world if rank == 0 else None
    dist.gather_object(final, everyone, dst=0)
    if rank == 0:
        print("final losses", everyone, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
