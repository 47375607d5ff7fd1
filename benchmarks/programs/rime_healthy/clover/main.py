"""Decentralised SGD (each worker talks to one neighbour per step)."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from gossip import HypercubeMixer


def spirals(n, seed, turns=0.6, classes=3):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    r = torch.rand(n, generator=g)
    t = r * turns * 6.283 + y * 6.283 / classes + 0.1 * torch.randn(n, generator=g)
    return torch.stack([r * t.cos(), r * t.sin()], 1), y


def build(width):
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))


@torch.no_grad()
def accuracy(model, ds):
    xs, ys = ds.tensors
    sl = slice(dist.get_rank(), None, dist.get_world_size())
    hits = (model(xs[sl]).argmax(1) == ys[sl]).sum().float()
    dist.all_reduce(hits)
    return hits.item() / len(ds)


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = build(args.width)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs)
    lossf = nn.CrossEntropyLoss()
    train, test = TensorDataset(*spirals(6144, 1)), TensorDataset(*spirals(1200, 2))
    sampler = DistributedSampler(train, world, rank, shuffle=True, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    mixer = HypercubeMixer(model)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            lossf(model(x), y).backward()
            opt.step()
            mixer.mix()
        sched.step()
        err, mean = mixer.consensus_error()
        central = copy.deepcopy(model)
        vector_to_parameters(mean, central.parameters())
        acc = accuracy(central, test)
        if rank == 0:
            print(f"epoch {epoch:02d} consensus {err:.4f} acc(mean model) {acc:.3f}", flush=True)

    _, mean = mixer.consensus_error()
    vector_to_parameters(mean, model.parameters())
    if rank == 0:
        torch.save(model.state_dict(), "mean_model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=16)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=3)
    main(p.parse_args())
