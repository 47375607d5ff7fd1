"""Linear probing of a frozen signal encoder, with its features cached on each rank."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from features import FeatureCache, FrozenBackbone


def make_signals(n, length=96, classes=6):
    g = torch.Generator().manual_seed(33)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.linspace(0, 6.28, length)
    freq = 1.0 + y.float()[:, None, None] + 0.2 * torch.rand(n, 4, 1, generator=g)
    return torch.sin(freq * t) + 0.8 * torch.randn(n, 4, length, generator=g), y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=1536)
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--cache-mb", type=float, default=64)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = make_signals(args.rows)
    mine = torch.arange(args.rows)[rank::world]
    cache = FeatureCache(FrozenBackbone(), args.cache_mb)
    head = DDP(nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 6)))
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=1e-2)
    for epoch in range(args.epochs):
        t0 = time.time()
        order = mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch * world + rank))]
        right = torch.zeros(2)
        for i in range(0, len(order) - args.batch + 1, args.batch):
            idx = order[i:i + args.batch]
            feats = cache(idx.tolist(), x[idx])
            logits = head(feats)
            loss = F.cross_entropy(logits, y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += torch.tensor([(logits.argmax(1) == y[idx]).sum().item(), float(len(idx))])
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch} acc {right[0] / right[1]:.3f} {time.time() - t0:.1f}s hits {cache.hits} misses {cache.misses} "
                  f"cache {cache.used / 1e6:.1f} MB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
