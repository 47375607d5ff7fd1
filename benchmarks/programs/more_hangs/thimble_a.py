"""One-forward-one-backward pipeline over consecutive ranks."""
import argparse
from collections import deque

import torch
import torch.distributed as dist
from torch import nn


class Wire:
    def __init__(self, rank, world, shape):
        self.up = rank - 1 if rank > 0 else None
        self.down = rank + 1 if rank + 1 < world else None
        self.shape = shape

    def pull(self, peer):
        if peer is None:
            return None
        buf = torch.empty(self.shape)
        dist.recv(buf, src=peer)
        return buf

    def push(self, tensor, peer):
        if peer is not None:
            dist.send(tensor.detach().contiguous(), dst=peer)

    def exchange(self, tensor, peer):
        if peer is None:
            return None
        pending = dist.isend(tensor.detach().contiguous(), dst=peer)
        buf = torch.empty(self.shape)
        dist.recv(buf, src=peer)
        pending.wait()
        return buf


class Stage(nn.Module):
    def __init__(self, width, last):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.last = last


class Pipeline:
    def __init__(self, rank, world, args):
        self.rank, self.world, self.args = rank, world, args
        self.wire = Wire(rank, world, (args.micro, args.width))
        torch.manual_seed(rank)
        self.stage = Stage(args.width, rank == world - 1)
        self.opt = torch.optim.SGD(self.stage.parameters(), lr=0.1)
        self.inflight = deque()
        self.loss = 0.0

    def entry(self, k, arrived):
        if self.rank == 0:
            g = torch.Generator().manual_seed(k)
            return torch.randn(self.args.micro, self.args.width, generator=g)
        return arrived.requires_grad_()

    def forward(self, k, arrived):
        x = self.entry(k, arrived)
        y = self.stage.body(x)
        if self.stage.last:
            y = (y - 0.5).pow(2).mean()
            self.loss += y.item()
        self.inflight.append((x, y))
        return y

    def backward(self, grad):
        x, y = self.inflight.popleft()
        y.backward(grad)
        return x.grad

    def run(self):
        n = self.args.microbatches
        warm = min(self.world - self.rank - 1, n)
        steady = n - warm
        for k in range(warm):
            y = self.forward(k, self.wire.pull(self.wire.up))
            self.wire.push(y, self.wire.down)
        arrived = self.wire.pull(self.wire.up) if steady else None
        for i in range(steady):
            y = self.forward(warm + i, arrived)
            grad = self.wire.exchange(y, self.wire.down) if not self.stage.last else None
            gx = self.backward(grad)
            if i + 1 < steady:
                arrived = self.wire.exchange(gx, self.wire.up) if self.rank else None
            else:
                self.wire.push(gx, self.wire.up)
        for _ in range(warm):
            gx = self.backward(self.wire.pull(self.wire.down))
            self.wire.push(gx, self.wire.up)
        self.opt.step()
        self.opt.zero_grad()
        return self.loss / n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--microbatches", type=int, default=6)
    p.add_argument("--micro", type=int, default=4)
    p.add_argument("--width", type=int, default=20)
    p.add_argument("--iters", type=int, default=3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    pipe = Pipeline(dist.get_rank(), dist.get_world_size(), args)
    for it in range(args.iters):
        pipe.loss = 0.0
        value = pipe.run()
        if pipe.stage.last:
            print(f"iter {it} loss {value:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
