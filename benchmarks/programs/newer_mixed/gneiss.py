"""Optimizer state split by hand: reduce-scatter of one flat gradient, local Adam, all-gather of weights."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class FlatAdam:
    """Keeps all weights in one padded vector; rank r updates only its own slice of it."""

    def __init__(self, model, lr, betas=(0.9, 0.99), eps=1e-8):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.params = list(reversed(list(model.parameters())))
        n = sum(p.numel() for p in self.params)
        self.size = math.ceil(n / self.world)
        self.flat = torch.zeros(self.size * self.world)
        self.grad = torch.zeros_like(self.flat)
        at = 0
        for p in self.params:
            self.flat[at:at + p.numel()] = p.detach().reshape(-1)
            p.data = self.flat[at:at + p.numel()].view_as(p)
            p.grad = self.grad[at:at + p.numel()].view_as(p)
            at += p.numel()
        self.m, self.v = torch.zeros(self.size), torch.zeros(self.size)
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0

    def zero(self):
        self.grad.zero_()

    @torch.no_grad()
    def step(self):
        own = torch.empty(self.size)
        dist.reduce_scatter_tensor(own, self.grad)
        own /= self.world
        norm = own.square().sum()
        dist.all_reduce(norm)
        own *= min(1.0, 1.0 / (norm.sqrt().item() + 1e-6))
        self.t += 1
        b1, b2 = self.betas
        self.m.lerp_(own, 1 - b1)
        self.v.lerp_(own * own, 1 - b2)
        mhat, vhat = self.m / (1 - b1 ** self.t), self.v / (1 - b2 ** self.t)
        piece = self.flat[self.rank * self.size:(self.rank + 1) * self.size].clone()
        piece -= self.lr * mhat / (vhat.sqrt() + self.eps)
        dist.all_gather_into_tensor(self.flat, piece)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--lr", type=float, default=3e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(41)
    model = nn.Sequential(nn.Linear(15, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 4))
    opt = FlatAdam(model, args.lr)
    gen = torch.Generator().manual_seed(410 + rank)
    for step in range(1, args.steps + 1):
        opt.zero()
        for _ in range(args.accum):
            x = torch.randn(10, 15, generator=gen)
            loss = F.cross_entropy(model(x), x[:, :4].argmax(1)) / args.accum
            loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item() * args.accum:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
