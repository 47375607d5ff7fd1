"""Stochastic gradient push on synthetic images."""
import argparse
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gossip import PushSum
from graph import DirectedExponentialGraph


def conv_net(classes):
    def unit(i, o, s):
        return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
    return nn.Sequential(unit(3, 24, 1), unit(24, 48, 2), unit(48, 64, 2), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(64, classes))


def synthetic(n, classes, seed):
    g = torch.Generator().manual_seed(5)
    protos = torch.randn(classes, 3, 24, 24, generator=g)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    return TensorDataset(protos[y] * 0.35 + torch.randn(n, 3, 24, 24, generator=g), y)


def accuracy(model, ds):
    model.eval()
    with torch.no_grad():
        x, y = ds.tensors
        acc = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return acc


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = conv_net(8)                     # same seed, same start
    graph = DirectedExponentialGraph(rank, world)
    mixer = PushSum(model, graph, lo=0.5 if rank % 2 == 0 else 0.6)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)

    train, val = synthetic(1920, 8, 1), synthetic(256, 8, 2)
    sampler = DistributedSampler(train, world, rank, shuffle=True, seed=3)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    random.seed(rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.time()
        for i, (x, y) in enumerate(loader):
            if random.random() < 0.5:       # augmentation draws are private to a node
                x = x.flip(-1)
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            mixer.mix()
            if i % 10 == 0:
                print(f"rank {rank} ep {epoch} it {i} loss {loss.item():.3f} ps-weight {mixer.w.item():.3f}", flush=True)
        gap = mixer.consensus_distance()
        print(f"rank {rank} ep {epoch} val {accuracy(model, val):.3f} consensus gap {gap:.4f} {time.time() - t0:.1f}s", flush=True)
        for grp in opt.param_groups:
            grp["lr"] *= 0.5

    mixer.average()
    final = accuracy(model, val)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(out, "sgp.pt"))
        print(f"final averaged model val {final:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
