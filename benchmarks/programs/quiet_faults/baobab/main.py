"""Training over a slow link: long local phases, rare meetings of the ranks."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from outer import OuterStep


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % 3
    r = torch.rand(n, generator=g) * 2 + 0.2
    angle = r * 2.2 + label * 2.0944 + 0.12 * torch.randn(n, generator=g)
    return TensorDataset(torch.stack([r * angle.cos(), r * angle.sin()], 1), label)


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 3))


def accuracy(net, data, rank, world):
    x, y = data.tensors
    with torch.no_grad():
        hit = (net(x[rank::world]).argmax(1) == y[rank::world]).sum().float()
    dist.all_reduce(hit)
    return hit.item() / len(y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--period", type=int, default=16)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--inner-lr", type=float, default=4e-3)
    ap.add_argument("--save", default="runs")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train, val = spirals(3072, 1), spirals(384, 2)
    net = network(8)
    inner = torch.optim.AdamW(net.parameters(), lr=args.inner_lr, weight_decay=1e-3)
    outer = OuterStep(net.parameters(), args.period)
    sampler = DistributedSampler(train, seed=4)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    assert args.epochs * len(loader) % args.period == 0
    window = torch.zeros(2)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            inner.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            inner.step()
            window += torch.tensor([loss.item(), 1.0])
            if outer.tick():
                dist.all_reduce(window)
                acc = accuracy(net, val, rank, world)
                if rank == 0:
                    print(f"epoch {epoch} meeting {outer.rounds} loss {window[0] / window[1]:.4f} acc {acc:.3f}", flush=True)
                window.zero_()
    if rank == 0:
        os.makedirs(args.save, exist_ok=True)
        torch.save({"net": net.state_dict(), "velocity": outer.velocity}, os.path.join(args.save, "spirals.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
