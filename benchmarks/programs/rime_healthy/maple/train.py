import argparse
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from sam import SAM


@contextmanager
def frozen_stats(model):
    """Batch-norm sees each batch once: no statistics in the second pass."""
    bns = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    keep = [m.momentum for m in bns]
    for m in bns:
        m.momentum = 0.0
    yield
    for m, k in zip(bns, keep):
        m.momentum = k


def textures(n, seed, size=14):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 5
    t = torch.arange(size).float()
    ang = y * 3.1416 / 5
    phase = 6.283 * torch.rand(n, 1, 1, generator=g)
    u = ang.cos()[:, None, None] * t[None, :, None] + ang.sin()[:, None, None] * t[None, None, :]
    return TensorDataset((torch.sin(u + phase) + 0.9 * torch.randn(n, size, size, generator=g))[:, None], y)


def net(c=16):
    blk = lambda i, o, s: [nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*blk(1, c, 1), *blk(c, c, 2), *blk(c, 2 * c, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * c, 5))


@torch.no_grad()
def evaluate(model, ds):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            for b in (m.running_mean, m.running_var):
                dist.all_reduce(b)
                b /= dist.get_world_size()
    model.eval()
    r, w = dist.get_rank(), dist.get_world_size()
    x, y = ds.tensors[0][r::w], ds.tensors[1][r::w]
    hit = (model(x).argmax(1) == y).sum().float()
    dist.all_reduce(hit)
    model.train()
    return hit.item() / len(ds)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=9)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--rho", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = textures(1536, 1), textures(500, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler)
    model = DDP(net(), forward_sync_buffers=False)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(base, args.epochs)
    sam = SAM(model.parameters(), base, args.rho)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with model.no_sync():
                F.cross_entropy(model(x), y).backward()
            sam.climb()
            with frozen_stats(model):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            sam.descend()
        sched.step()
        acc = evaluate(model.module, test)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f}", flush=True)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "net.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
