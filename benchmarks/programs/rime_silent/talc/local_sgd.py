"""Low communication training: many local steps between two exchanges."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from averaging import PeriodicAverager


def digits(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (n,), generator=g)
    proto = torch.randn(10, 256, generator=torch.Generator().manual_seed(77))
    return TensorDataset(0.35 * proto[y] + torch.randn(n, 256, generator=g), y)


def mlp(width):
    return nn.Sequential(nn.Linear(256, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1),
                         nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))


@torch.no_grad()
def broadcast_parameters(model):
    for t in list(model.parameters()) + list(model.buffers()):
        dist.broadcast(t.data, src=0)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    c = torch.zeros(2)
    for x, y in loader:
        c += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(c)
    model.train()
    return (c[0] / c[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--samples", type=int, default=6144)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--period", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--seed", type=int, default=31)
    p.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "mlp.pt"))
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    model = mlp(args.width)
    broadcast_parameters(model)

    train, test = digits(args.samples, 0), digits(256 * world, 1)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test, 64, sampler=DistributedSampler(test, shuffle=False))

    inner = torch.optim.AdamW(model.parameters(), lr=args.lr)
    outer = PeriodicAverager(model, args.period)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total, n = torch.zeros(()), 0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
            outer.step()
            total += loss.detach()
            n += 1
        outer.sync()
        mean = total / n / world
        dist.all_reduce(mean)
        acc = accuracy(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item():.4f} acc {acc:.3f}", flush=True)
    if rank == 0:
        torch.save(model.state_dict(), args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
