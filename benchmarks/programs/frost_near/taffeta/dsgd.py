"""Decentralised SGD on a ring: every node keeps its own iterate, the mean over nodes is the result."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from gossip import RingGossip


def houses(n=960, seed=13):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 14, generator=g)
    y = (x[:, 0] * x[:, 1] + x[:, 2:5].sum(1)).unsqueeze(1)
    return TensorDataset(x, y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.03)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(14, 48), nn.Tanh(), nn.Linear(48, 1))
    gossip = RingGossip(model)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    data = houses()
    local = Subset(data, range(rank, len(data), world))
    loader = DataLoader(local, batch_size=20, shuffle=True,
                        generator=torch.Generator().manual_seed(40 + rank))
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            gossip.mix()
            total += loss.detach()
        dist.reduce(total, 0)
        if rank == 0:
            print(f"epoch {epoch} mean node loss {total.item() / len(loader) / world:.4f}")
    gap = gossip.consensus()
    if rank == 0:
        with torch.no_grad():
            x, y = data.tensors
            print(f"distance of node 0 to the mean {gap:.4f}, mse of the mean "
                  f"{nn.functional.mse_loss(model(x), y):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
