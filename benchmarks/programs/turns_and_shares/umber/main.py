"""Sparse mixture classifier: trunk shared by all processes, experts spread over them."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from experts import ExpertLayer


def spirals(count, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (count,), generator=g)
    r = torch.rand(count, generator=g) * 2 + 0.3
    a = r * 2.2 + y * 1.5708 + 0.1 * torch.randn(count, generator=g)
    return TensorDataset(torch.stack([r * a.cos(), r * a.sin()], 1), y)


class SparseNet(nn.Module):
    def __init__(self, width, capacity):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.moe = ExpertLayer(width, capacity)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        h, balance = self.moe(self.inp(x))
        return self.out(h), balance

    def split_parameters(self):
        local = list(self.moe.expert.parameters())
        ids = {id(p) for p in local}
        return [p for p in self.parameters() if id(p) not in ids], local


def sync_gradients(shared, local, world):
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    flat /= world
    for p, g in zip(shared, flat.split([p.numel() for p in shared])):
        p.grad.copy_(g.view_as(p))
    for p in local:
        p.grad /= world


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts += torch.tensor([(net(x)[0].argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(counts)
    net.train()
    return (counts[0] / counts[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=24)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=9)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "sparse_spirals"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = SparseNet(args.width, capacity=args.batch)
    shared, local = net.split_parameters()
    for p in shared:
        dist.broadcast(p.data, 0)
    opt = torch.optim.Adam([{"params": shared}, {"params": local}], lr=args.lr)

    train, valid = spirals(2048, 1), spirals(512, 2)
    sampler = DistributedSampler(train, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    held = DataLoader(valid, args.batch, sampler=DistributedSampler(valid, world, rank, shuffle=False))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            logits, balance = net(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            (loss + 0.02 * balance).backward()
            sync_gradients(shared, local, world)
            opt.step()
            total += loss.detach()
        total /= len(loader)
        dist.all_reduce(total)
        score = evaluate(net, held)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world:.4f} accuracy {score:.3f}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    torch.save(net.moe.expert.state_dict(), os.path.join(args.out, f"expert_{rank}.pt"))
    if rank == 0:
        trunk = {k: v for k, v in net.state_dict().items() if not k.startswith("moe.expert.")}
        torch.save(trunk, os.path.join(args.out, "trunk.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
