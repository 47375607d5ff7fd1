"""Delayed gradients: the reduction of a step is waited for three steps later."""
import argparse
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn


class Delayed:
    def __init__(self, parameters, opt, delay):
        self.parameters, self.opt = list(parameters), opt
        self.queue, self.delay = deque(), delay

    def submit(self):
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        flat.div_(dist.get_world_size())
        self.queue.append((dist.all_reduce(flat, async_op=True), flat))
        if len(self.queue) > self.delay:
            self.apply()

    def apply(self):
        work, flat = self.queue.popleft()
        work.wait()
        offset = 0
        for p in self.parameters:
            p.grad = flat[offset:offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        self.opt.step()

    def drain(self):
        while self.queue:
            self.apply()


class Scores:
    """Rank-wise losses, gathered without waiting and read at the end."""

    def __init__(self):
        self.pending = []

    def add(self, loss):
        out = [torch.zeros(1) for _ in range(dist.get_world_size())]
        self.pending.append((dist.all_gather(out, loss.detach().reshape(1), async_op=True), out))

    def read(self):
        values = []
        for work, out in reversed(self.pending):
            work.wait()
            values.append(torch.cat(out).mean().item())
        return values[::-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--delay", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 6))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    delayed, scores = Delayed(model.parameters(), opt, args.delay), Scores()
    for step in range(args.steps):
        x = torch.randn(24, 6, generator=torch.Generator().manual_seed(step * 2 + rank))
        model.zero_grad()
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        delayed.submit()
        if step % 5 == 0:
            scores.add(loss)
    delayed.drain()
    values = scores.read()
    if rank == 0:
        print(f"losses {values[0]:.3f} -> {values[-1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
