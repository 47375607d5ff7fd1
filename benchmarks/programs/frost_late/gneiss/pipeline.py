import argparse

import torch
import torch.distributed as dist
from torch import nn

from schedule import MicroBatchPlan

HIDDEN = 32


class FirstStage:
    def __init__(self, lr):
        self.net = nn.Sequential(nn.Linear(10, HIDDEN), nn.ReLU())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)

    def step(self, x, chunks):
        outs = []
        for xb in x.chunk(chunks):
            h = self.net(xb)
            dist.send(h.detach(), dst=1)
            outs.append(h)
        self.opt.zero_grad()
        for h in outs:
            g = torch.empty_like(h)
            dist.recv(g, src=1)
            h.backward(g)
        self.opt.step()


class LastStage:
    def __init__(self, lr):
        self.net = nn.Linear(HIDDEN, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)

    def step(self, y, chunks):
        total, grads = 0.0, []
        self.opt.zero_grad()
        for yb in y.chunk(chunks):
            h = torch.empty(len(yb), HIDDEN)
            dist.recv(h, src=0)
            h.requires_grad_()
            loss = nn.functional.mse_loss(self.net(h), yb) / chunks
            loss.backward()
            total += loss.item()
            grads.append(h.grad)
        for g in grads:
            dist.send(g, dst=0)
        self.opt.step()
        return total


def batch(gen, n=32):
    x = torch.randn(n, 10, generator=gen)
    return x, x[:, :3].prod(1, keepdim=True).tanh()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.05)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(20 + rank)
    plan = MicroBatchPlan()
    gen = torch.Generator().manual_seed(1)
    stage = FirstStage(a.lr) if rank == 0 else LastStage(a.lr)
    for step in range(a.steps):
        x, y = batch(gen)
        if rank == 0:
            stage.step(x, plan.sender(step))
        else:
            loss = stage.step(y, plan.receiver(step))
            if step % 4 == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
