"""Synchronous data parallel loop with a snapshot writer that runs beside it."""
import argparse
import hashlib
import io
import threading
import time

import torch
import torch.distributed as dist
from torch import nn


class SnapshotWriter:
    def __init__(self, rank, cost):
        self.rank = rank
        self.cost = cost
        self.jobs = []
        self.catalog = {}
        self.group = dist.new_group()

    def submit(self, step, state):
        frozen = {k: v.detach().clone() for k, v in state.items()}
        job = threading.Thread(target=self._write, args=(step, frozen), name=f"snapshot-{step}")
        job.start()
        self.jobs.append(job)

    def _encode(self, frozen):
        raw = io.BytesIO()
        torch.save(frozen, raw)
        time.sleep(self.cost)
        return hashlib.sha1(raw.getvalue()).hexdigest()

    def _write(self, step, frozen):
        digest = self._encode(frozen)
        entries = [None] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object((step, digest), entries, dst=0, group=self.group)
        if self.rank == 0:
            self.catalog[step] = entries

    def drain(self):
        for job in self.jobs:
            job.join()


class Worker:
    def __init__(self, args):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        torch.manual_seed(9)
        self.net = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.02)
        self.writer = SnapshotWriter(self.rank, args.root_cost if self.rank == 0 else args.cost)
        self.g = torch.Generator().manual_seed(self.rank)

    def step(self):
        x = torch.randn(16, 10, generator=self.g)
        loss = (self.net(x).squeeze(-1) - x.sum(1)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in self.net.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for p in self.net.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        self.opt.step()
        time.sleep(0.03)
        return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--snapshot-every", type=int, default=20)
    p.add_argument("--root-cost", type=float, default=0.5)
    p.add_argument("--cost", type=float, default=0.1)
    args = p.parse_args()
    dist.init_process_group("gloo")
    w = Worker(args)
    for s in range(1, args.steps + 1):
        loss = w.step()
        if s % args.snapshot_every == 0:
            w.writer.submit(s, w.net.state_dict())
            if w.rank == 0:
                print(f"step {s} loss {loss:.3f}", flush=True)
    w.writer.drain()
    dist.barrier()
    if w.rank == 0:
        print("snapshots", sorted(w.writer.catalog), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
