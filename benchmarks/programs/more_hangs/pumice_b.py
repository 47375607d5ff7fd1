"""Adapters are trained by one owner each and published to everybody after every round."""
import argparse

import torch
import torch.distributed as dist
from torch import nn


class Adapter(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.a = nn.Parameter(torch.randn(dim, rank) * 0.1)
        self.b = nn.Parameter(torch.randn(rank, dim) * 0.1)

    def forward(self, x):
        return x @ self.a @ self.b


class Layer(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.base = nn.Linear(dim, dim)
        self.base.requires_grad_(False)
        self.adapter = Adapter(dim, rank)

    def forward(self, x):
        return torch.tanh(self.base(x) + self.adapter(x))


class Net(nn.Module):
    def __init__(self, depth, dim, rank):
        super().__init__()
        self.layers = nn.ModuleList([Layer(dim, rank) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Ownership:
    def __init__(self, net, world):
        self.tensors = {n: p for n, p in net.named_parameters() if p.requires_grad}
        layer_of = {n: int(n.split(".")[1]) for n in self.tensors}
        self.owner = {n: layer_of[n] % world for n in self.tensors}

    def mine(self, rank):
        return [n for n, r in self.owner.items() if r == rank]

    def names(self):
        return set(self.tensors)


class Publisher:
    def __init__(self, ownership):
        self.ownership = ownership

    def publish(self, names):
        for name in sorted(names):
            dist.broadcast(self.ownership.tensors[name].data, src=self.ownership.owner[name])


def local_round(net, ownership, rank, seed, inner):
    mine = [ownership.tensors[n] for n in ownership.mine(rank)]
    opt = torch.optim.SGD(mine, lr=0.1)
    g = torch.Generator().manual_seed(seed * 10 + rank)
    for _ in range(inner):
        x = torch.randn(16, 16, generator=g)
        loss = (net(x) - x.roll(1, 0)).pow(2).mean()
        net.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--inner", type=int, default=5)
    p.add_argument("--depth", type=int, default=9)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    net = Net(args.depth, 16, 4)
    ownership = Ownership(net, world)
    publisher = Publisher(ownership)
    for r in range(args.rounds):
        loss = local_round(net, ownership, rank, r, args.inner)
        publisher.publish(ownership.names())
        if rank == 0:
            print(f"round {r} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
