"""Sharded momentum SGD with in-memory buddy snapshots.

Each rank parks a copy of its optimizer shard at the next rank; when the optimizer object is lost
(here on purpose, every `--lose-every` steps) it is rebuilt from the buddy's copy.
"""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def ring_shift(tensor, by):
    rank, world = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(tensor)
    ops = [dist.P2POp(dist.isend, tensor, (rank + by) % world), dist.P2POp(dist.irecv, got, (rank - by) % world)]
    for req in dist.batch_isend_irecv(ops):
        req.wait()
    return got


class ShardSGD:
    def __init__(self, params, lr, mu=0.9):
        self.params = list(params)
        self.lr, self.mu = lr, mu
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.owned = [p for i, p in enumerate(self.params) if i % self.world == self.rank]
        self.buf = [torch.zeros_like(p) for p in self.owned]

    @torch.no_grad()
    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= self.world
        for p, b in zip(self.owned, self.buf):
            b.mul_(self.mu).add_(p.grad)
            p.add_(b, alpha=-self.lr)
        for i, p in enumerate(self.params):
            dist.broadcast(p.data, src=i % self.world)

    def pack(self, width):
        flat = torch.cat([b.flatten() for b in self.buf])
        return F.pad(flat, (0, width - flat.numel()))

    def unpack(self, flat):
        at = 0
        for b in self.buf:
            b.copy_(flat[at:at + b.numel()].view_as(b))
            at += b.numel()


class Buddy:
    def __init__(self, opt):
        size = torch.tensor(sum(b.numel() for b in opt.buf))
        dist.all_reduce(size, op=dist.ReduceOp.MAX)
        self.width = int(size)
        self.parked = None

    def snapshot(self, opt):
        self.parked = ring_shift(opt.pack(self.width), 1)

    def restore(self, opt):
        opt.unpack(ring_shift(self.parked, -1))


def spiral(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    t = 0.5 + 2.5 * torch.rand(n, generator=g)
    a = 2 * t + 3.1416 * y
    return torch.stack([t * a.cos(), t * a.sin()], 1) + 0.08 * torch.randn(n, 2, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--lose-every", type=int, default=25)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=10)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(2, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 2))
    x, y = spiral(4000, args.seed)
    opt = ShardSGD(net.parameters(), args.lr)
    buddy = Buddy(opt)
    gen = torch.Generator().manual_seed(args.seed)

    for step in range(1, args.steps + 1):
        pick = torch.randperm(len(x), generator=gen)[:world * args.batch].chunk(world)[rank]
        loss = F.cross_entropy(net(x[pick]), y[pick])
        net.zero_grad()
        loss.backward()
        opt.step()
        buddy.snapshot(opt)
        if step % args.lose_every == 0:
            opt = ShardSGD(net.parameters(), args.lr)
            buddy.restore(opt)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean / world:.4f} (optimizer rebuilt)", flush=True)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), args.out / "spiral.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
