"""Predicts the next page of a visit; the job length is given in steps."""
import argparse
import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from readers import PAGES, Visits, write_log

HERE = os.path.dirname(os.path.abspath(__file__))


class NextPage(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.page = nn.Embedding(PAGES, dim)
        self.body = nn.Sequential(nn.Linear(3 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, PAGES))

    def forward(self, trail):
        return self.body(self.page(trail).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--users", type=int, default=900)
    parser.add_argument("--length", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--log", default=os.path.join(HERE, "visits.csv"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_log(args.log, args.users, args.length, seed=1)
        write_log(args.log + ".test", 150, args.length, seed=2)
    dist.barrier()
    torch.manual_seed(3)
    loader = DataLoader(Visits(args.log, rank, world), batch_size=args.batch, num_workers=args.workers)
    held_out = list(Visits(args.log + ".test", rank, world)._pairs(rank, world))
    test_x, test_y = torch.stack([t for t, _ in held_out]), torch.tensor([p for _, p in held_out])
    model = DistributedDataParallel(NextPage(args.dim))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (trail, page) in enumerate(itertools.islice(loader, args.steps), 1):
        loss = nn.functional.cross_entropy(model(trail), page)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 0:
            with torch.no_grad():
                right = (model.module(test_x).argmax(1) == test_y).sum()
            counts = torch.stack([right, torch.tensor(len(test_y))])
            dist.all_reduce(counts)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} next page right {(counts[0] / counts[1]).item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
