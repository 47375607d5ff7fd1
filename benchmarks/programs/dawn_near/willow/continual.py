"""Two tasks one after the other; the second is held near the weights and importances of the first.

The workers step on their own and average the parameters every few steps; each keeps a running
average of its own weights, and these are merged at the end of a task.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Task:
    def __init__(self, seed, rank, dim=64, classes=8):
        g = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(classes, dim, generator=g)
        self.g = torch.Generator().manual_seed(seed * 100 + rank)
        self.classes = classes

    def batch(self, n):
        y = torch.randint(0, self.classes, (n,), generator=self.g)
        return self.centres[y] + 1.2 * torch.randn(n, self.centres.shape[1], generator=self.g), y


@torch.no_grad()
def average_params(tensors):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for t in tensors:
        t.copy_(flat[offset:offset + t.numel()].view_as(t))
        offset += t.numel()


def importances(net, task, rounds):
    total = [torch.zeros_like(p) for p in net.parameters()]
    for _ in range(rounds):
        x, y = task.batch(32)
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        for t, p in zip(total, net.parameters()):
            t += p.grad ** 2 / rounds
    net.zero_grad()
    average_params(total)
    return total


@torch.no_grad()
def accuracy(net, task):
    x, y = task.batch(512)
    hit = (net(x).argmax(1) == y).float().mean()
    dist.all_reduce(hit)
    return hit.item() / dist.get_world_size()


def train(net, task, args, anchor=None, weight=None):
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9)
    mean = [p.detach().clone() for p in params]
    for step in range(1, args.steps + 1):
        x, y = task.batch(args.batch)
        loss = F.cross_entropy(net(x), y)
        if anchor is not None:
            loss = loss + args.strength * sum((w * (p - a) ** 2).sum() for p, a, w in zip(params, anchor, weight))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.local_steps == 0:
            average_params(params)
        with torch.no_grad():
            for m, p in zip(mean, params):
                m.lerp_(p, 0.05)
        if step % 40 == 0 and dist.get_rank() == 0:
            print(f"  step {step} loss {loss.item():.4f}", flush=True)
    average_params(mean)
    with torch.no_grad():
        for p, m in zip(params, mean):
            p.copy_(m)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--local-steps", type=int, default=8)
    ap.add_argument("--strength", type=float, default=40.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    tasks = [Task(1, rank), Task(2, rank)]
    train(net, tasks[0], args)
    before = accuracy(net, tasks[0])
    weight = importances(net, tasks[0], 20)
    anchor = [p.detach().clone() for p in net.parameters()]
    train(net, tasks[1], args, anchor, weight)
    after = [accuracy(net, t) for t in tasks]
    if rank == 0:
        print(f"first task {before:.3f}, then {after[0]:.3f}; second task {after[1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
