"""Training with a side thread that averages machine load on a group of its own."""
import argparse
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class LoadWatch(threading.Thread):
    def __init__(self, ticks, pause):
        super().__init__(name="load-watch")
        self.group = dist.new_group()
        self.ticks, self.pause = ticks, pause
        self.seen = []

    def run(self):
        for _ in range(self.ticks):
            time.sleep(self.pause)
            box = torch.tensor([os.getloadavg()[0]], dtype=torch.float64)
            dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self.group)
            self.seen.append(box.item())


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(0)
        self.net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.g = torch.Generator().manual_seed(rank)

    def steps(self, n):
        for s in range(n):
            x = torch.randn(16, 8, generator=self.g)
            loss = (self.net(x) - x).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.rank and s % 10 == 0:
                time.sleep(0.15)
        return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--ticks", type=int, default=16)
    p.add_argument("--pause", type=float, default=0.2)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    watch = LoadWatch(a.ticks, a.pause * (1 + rank))
    trainer = Trainer(rank)
    watch.start()
    loss = trainer.steps(a.steps)
    watch.join()
    dist.barrier()
    if rank == 0:
        print(f"loss {loss:.4f}, {len(watch.seen)} load samples", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
