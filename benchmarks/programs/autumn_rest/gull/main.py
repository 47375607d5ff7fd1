"""Local SGD with an outer Nesterov step: workers part for a while and meet again."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class OuterOptimizer:
    def __init__(self, model, lr=0.7, momentum=0.6):
        self.model, self.lr, self.momentum = model, lr, momentum
        self.anchor = self._pack()
        self.velocity = torch.zeros_like(self.anchor)

    def _pack(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    @torch.no_grad()
    def _unpack(self, flat):
        at = 0
        for p in self.model.parameters():
            p.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    def rebase(self):
        self.anchor = self._pack()

    def step(self):
        delta = self.anchor - self._pack()
        dist.all_reduce(delta)
        delta /= dist.get_world_size()
        self.velocity.mul_(self.momentum).add_(delta)
        self.anchor -= self.lr * (delta + self.momentum * self.velocity)
        self._unpack(self.anchor)


def average_grads(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def make_model():
    return nn.Sequential(nn.Linear(100, 640), nn.GELU(), nn.Linear(640, 640), nn.GELU(), nn.Linear(640, 5))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--warmup", type=int, default=40, help="steps with gradients averaged every time")
    p.add_argument("--rounds", type=int, default=18)
    p.add_argument("--inner", type=int, default=16)
    p.add_argument("--batch", type=int, default=96)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = make_model()
    for t in model.parameters():
        dist.broadcast(t.data, src=0)
    inner = torch.optim.AdamW(model.parameters(), lr=5e-4)
    gen = torch.Generator().manual_seed(50 + rank)
    w = torch.randn(100, 5, generator=torch.Generator().manual_seed(1))

    def local_loss():
        x = torch.randn(args.batch, 100, generator=gen)
        y = (torch.tanh(x) @ w).argmax(1)
        return F.cross_entropy(model(x), y)

    for _ in range(args.warmup):
        loss = local_loss()
        inner.zero_grad()
        loss.backward()
        average_grads(model)
        inner.step()
    outer = OuterOptimizer(model)
    for r in range(args.rounds):
        outer.rebase()
        for _ in range(args.inner):
            loss = local_loss()
            inner.zero_grad()
            loss.backward()
            inner.step()
        outer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and r % 3 == 2:
            print(f"round {r + 1} loss {mean / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
