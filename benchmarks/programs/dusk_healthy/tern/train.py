"""Fused backward: every parameter is reduced, updated and its gradient dropped as soon as it is there.

Saves the memory of the gradients (LOMO style). Needs the gradient norm beforehand when one clips,
so gradients are clipped by value here.
"""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("fused")


class FusedBackward:
    """One small optimizer per parameter, stepped from its accumulate hook.

    The hooks fire in the order of the autograd graph, which is the same on every process.
    """

    def __init__(self, model, lr, clip_value):
        self.clip, self.world = clip_value, dist.get_world_size()
        self.opts = {p: torch.optim.AdamW([p], lr=lr, weight_decay=0.01) for p in model.parameters()}
        self.fired = 0
        for p in self.opts:
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        dist.all_reduce(p.grad)
        p.grad.div_(self.world).clamp_(-self.clip, self.clip)
        self.opts[p].step()
        p.grad = None
        self.fired += 1

    def set_lr(self, lr):
        for o in self.opts.values():
            o.param_groups[0]["lr"] = lr


class Mixer(nn.Module):
    """Token / channel mixing with activation checkpointing."""

    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tok = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.ch = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class Net(nn.Module):
    def __init__(self, dim=96, depth=3, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.blocks = nn.ModuleList(Mixer(16, dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False)
        return self.head(x.mean(1))


def data(n=2400):
    g = torch.Generator().manual_seed(40)
    proto = F.interpolate(torch.randn(10, 3, 4, 4, generator=g), size=16)
    y = torch.randint(10, (n,), generator=g)
    return TensorDataset(0.6 * proto[y] + torch.randn(n, 3, 16, 16, generator=g), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=40)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--clip-value", type=float, default=0.1)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    fused = FusedBackward(model, args.lr, args.clip_value)
    ds = data()
    sampler = DistributedSampler(ds, world, rank, seed=2)
    loader = DataLoader(ds, args.batch_size, sampler=sampler)
    total_steps, step = args.epochs * len(loader), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, running = time.time(), 0.0
        for x, y in loader:
            fused.set_lr(args.lr * min(1.0, (step + 1) / 10) * (1 - step / total_steps))
            loss = F.cross_entropy(model(x), y)
            loss.backward()                     # the update happens in here
            running, step = running + loss.item(), step + 1
        log.info("rank %d epoch %d loss %.4f updates %d %.1fs", rank, epoch, running / len(loader), fused.fired, time.time() - t0)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(out, "mixer.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
