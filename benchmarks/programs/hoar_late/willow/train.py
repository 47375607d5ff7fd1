"""Every launched process trains a small group of its own; the results are compared at the end."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def group_member(local, n, rendezvous, result, width, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=local, world_size=n)
    torch.manual_seed(width)
    model = DDP(nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(local)
    for step in range(steps):
        x = torch.randn(64, 8, generator=g)
        loss = nn.functional.mse_loss(model(x), x[:, :1].abs())
        opt.zero_grad()
        loss.backward()
        opt.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if local == 0:
        torch.save(mean / n, result)
    dist.barrier()
    dist.destroy_process_group()


def train_group(width, args):
    with tempfile.TemporaryDirectory() as tmp:
        rendezvous, result = os.path.join(tmp, "rdzv"), os.path.join(tmp, "loss.pt")
        mp.spawn(group_member, (args.procs, rendezvous, result, width, args.steps), nprocs=args.procs)
        return torch.load(result).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    ap.add_argument("--procs", type=int, default=2)
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    width = args.widths[rank % len(args.widths)]
    loss = train_group(width, args)
    table = [None] * world
    dist.all_gather_object(table, (width, loss))
    if rank == 0:
        for w, l in table:
            print(f"width {w}: loss {l:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
