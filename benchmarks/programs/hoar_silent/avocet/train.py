"""Local SGD: every worker runs alone for a while, the parameters are averaged once in a period."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class PeriodicAverager:
    def __init__(self, params, period, warmup=0):
        self.params = list(params)
        self.period, self.warmup = period, warmup
        self.t = 0

    def broadcast(self):
        for p in self.params:
            dist.broadcast(p.data, src=0)

    def average(self):
        flat = torch.cat([p.data.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in self.params:
            p.data.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    def step(self):
        self.t += 1
        if self.t <= self.warmup or self.t % self.period == 0:
            self.average()


def shard(rank, world, n=3000, dim=20):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, 4, generator=g)
    y = (x @ w + 0.5 * torch.randn(n, 4, generator=g)).argmax(1)
    return x[rank::world], y[rank::world]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--period", type=int, default=8)
    ap.add_argument("--warmup", type=int, default=16)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    averager = PeriodicAverager(model.parameters(), args.period, args.warmup)
    averager.broadcast()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = shard(rank, world)
    gen = torch.Generator().manual_seed(1000 + rank)
    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(x), (args.batch,), generator=gen)
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        averager.step()
        if step % 40 == 0:
            t = loss.detach().clone()
            dist.all_reduce(t)
            if rank == 0:
                print(f"step {step} loss {t.item() / world:.4f}", flush=True)
    averager.average()
    with torch.no_grad():
        hit = torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float)
    dist.all_reduce(hit)
    if rank == 0:
        torch.save(model.state_dict(), "model.pt")
        print(f"accuracy {hit[0] / hit[1]:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
