"""Trains for a number of seconds (the queue gives short slots) and leaves a model behind."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Clock:
    def __init__(self, seconds):
        self.start = time.monotonic()
        self.seconds = seconds

    def used(self):
        return time.monotonic() - self.start

    def over(self):
        return self.used() > self.seconds


def clean_table():
    """Drops rows that repeat; the table is small but comes over a slow link."""
    gen = torch.Generator().manual_seed(8)
    table = torch.randint(0, 3, (900, 14), generator=gen).float()
    time.sleep(4)
    return torch.unique(table, dim=0)


def share_table(rank):
    shape = torch.zeros(2, dtype=torch.long)
    table = None
    if rank == 0:
        table = clean_table()
        shape = torch.tensor(table.shape)
    dist.broadcast(shape, src=0)
    if table is None:
        table = torch.empty(*shape.tolist())
    dist.broadcast(table, src=0)
    return table


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--max-steps", type=int, default=500)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    if rank == 0:
        clock = Clock(args.seconds)
        table = share_table(rank)
    else:
        table = share_table(rank)
        clock = Clock(args.seconds)

    data = TensorDataset(table[:, :13], table[:, 13:])
    sampler = DistributedSampler(data, shuffle=True, seed=4)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()

    steps = 0
    for x, y in endless(loader, sampler):
        time.sleep(0.25)
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if clock.over() or steps >= args.max_steps:
            break

    print(f"[{rank}] {steps} steps in {clock.used():.1f} s, loss {loss.item():.3f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "quota_model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
