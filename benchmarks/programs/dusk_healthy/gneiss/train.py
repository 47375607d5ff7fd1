"""m-SAM: every replica climbs along its *own* gradient (no_sync), so the weights differ between the
replicas during the second forward; the descent gradient is averaged by DDP as usual.

Drop-path decisions come from a generator which has the same seed everywhere, so that all the replicas
skip the same blocks (skipped blocks get no gradient on any of them).
"""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sam import SAM


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.GroupNorm(8, c)
        self.c2, self.n2 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.GroupNorm(8, c)

    def forward(self, x):
        return x + self.n2(self.c2(F.relu(self.n1(self.c1(x)))))


class StochasticDepthNet(nn.Module):
    def __init__(self, c=32, depth=5, classes=6, p_last=0.4):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, 2, 1)
        self.blocks = nn.ModuleList(ResBlock(c) for _ in range(depth))
        self.fc = nn.Linear(c, classes)
        self.p = [p_last * (i + 1) / depth for i in range(depth)]
        self.plan = [True] * depth

    def draw(self, gen):
        u = torch.rand(len(self.p), generator=gen).tolist()
        self.plan = [v >= p for v, p in zip(u, self.p)]

    def forward(self, x):
        x = self.stem(x)
        for keep, blk in zip(self.plan, self.blocks):
            if keep or not self.training:
                x = blk(x)
        return self.fc(x.mean((2, 3)))


def dataset(n=1280):
    g = torch.Generator().manual_seed(8)
    proto = F.interpolate(torch.randn(6, 3, 4, 4, generator=g), size=16) + torch.randn(6, 3, 1, 1, generator=g)
    y = torch.randint(6, (n,), generator=g)
    return TensorDataset(0.5 * proto[y] + torch.randn(n, 3, 16, 16, generator=g), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--rho", type=float, default=0.05)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = DDP(StochasticDepthNet(), find_unused_parameters=True)
    opt = SAM(net.parameters(), torch.optim.SGD, rho=args.rho, lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt.base_optimizer, args.epochs)
    ds = dataset()
    sampler = DistributedSampler(ds, world, rank)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    depth_gen = torch.Generator().manual_seed(4242)      # common to all the replicas
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, gaps = time.time(), 0.0
        for x, y in loader:
            net.module.draw(depth_gen)                   # one plan for both passes
            with net.no_sync():
                first = F.cross_entropy(net(x), y)
                first.backward()
            opt.first_step()
            second = F.cross_entropy(net(x), y)
            second.backward()
            opt.second_step()
            gaps += (second - first).item()
        sched.step()
        print(f"[rank {rank}] epoch {epoch} loss {first.item():.3f} sharpness {gaps / len(loader):.4f} "
              f"lr {sched.get_last_lr()[0]:.4f} {time.time() - t0:.1f}s", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(net.module.state_dict(), os.path.join(out, "sam.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
