"""Find a micro batch that fits everywhere, falling back together when one rank runs short."""
import argparse

import torch
import torch.distributed as dist
from torch import nn


class OutOfRoom(RuntimeError):
    pass


class Arena:
    def __init__(self, room):
        self.room = room

    def claim(self, rows):
        if rows > self.room:
            raise OutOfRoom(f"{rows} rows do not fit in {self.room}")


def any_failed(failed):
    vote = torch.tensor([int(failed)])
    dist.all_reduce(vote, op=dist.ReduceOp.MAX)
    return bool(vote)


class Elastic:
    def __init__(self, rank, args):
        self.rank = rank
        self.micro = args.batch
        self.batch = args.batch
        self.arena = Arena(args.rooms[rank % len(args.rooms)])
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.g = torch.Generator().manual_seed(rank)

    def local_grads(self, x):
        self.opt.zero_grad()
        total = 0.0
        for part in x.split(self.micro):
            self.arena.claim(len(part))
            loss = (self.net(part).squeeze(-1) - part.sum(1)).pow(2).sum() / len(x)
            loss.backward()
            total += loss.item()
        return total

    def attempt(self, x):
        value, failed = 0.0, False
        try:
            value = self.local_grads(x)
        except OutOfRoom as err:
            print(f"rank {self.rank}: {err}", flush=True)
            failed = True
        return value, any_failed(failed)

    def step(self):
        x = torch.randn(self.batch, 4, generator=self.g)
        value, failed = self.attempt(x)
        while failed:
            self.micro //= 2
            value, failed = self.attempt(x)
        for p in self.net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.opt.step()
        return value


def announce(text):
    cell = [text if dist.get_rank() == 0 else None]
    last = None
    for origin in (dist.get_world_size(), 0):
        try:
            dist.broadcast_object_list(cell, group_src=origin)
            return cell[0]
        except (ValueError, RuntimeError) as err:
            last = err
    raise last


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--rooms", type=int, nargs="*", default=[40, 9, 20])
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    runner = Elastic(rank, args)
    for s in range(args.steps):
        value = runner.step()
    text = announce(f"micro batch {runner.micro}, loss {value:.4f}")
    print(f"rank {rank}: {text}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
