"""Decentralised training on a ring: neighbours mix their weights, nobody averages globally."""
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    epochs: int = 6
    batch: int = 32
    lr: float = 0.05
    momentum: float = 0.9
    mix_every: int = 2
    seed: int = 33


class Ring:
    """Exchange of flat vectors with the left and the right neighbour."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left, self.right = (self.rank - 1) % self.world, (self.rank + 1) % self.world

    def exchange(self, flat):
        from_left, from_right = torch.empty_like(flat), torch.empty_like(flat)
        ops = [dist.P2POp(dist.isend, flat, self.right, tag=1), dist.P2POp(dist.isend, flat, self.left, tag=2),
               dist.P2POp(dist.irecv, from_left, self.left, tag=1), dist.P2POp(dist.irecv, from_right, self.right, tag=2)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return from_left, from_right

    def mix(self, flat, share=0.25):
        if self.world == 1:
            return flat
        left, right = self.exchange(flat)
        return (1 - 2 * share) * flat + share * (left + right)


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    a = torch.rand(n, generator=g) * torch.pi
    base = torch.stack([a.cos(), a.sin()], 1)
    x = torch.where((y == 0)[:, None], base, torch.where((y == 1)[:, None], torch.stack([1 - a.cos(), 0.5 - a.sin()], 1),
                                                        torch.stack([a.cos() + 2, a.sin()], 1)))
    return TensorDataset(x + 0.15 * torch.randn(n, 2, generator=g), y)


class Node:
    def __init__(self, cfg):
        self.cfg, self.ring = cfg, Ring()
        torch.manual_seed(cfg.seed)
        self.net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=cfg.lr, momentum=cfg.momentum)
        train = moons(1800, 1)
        self.test = moons(600, 2)
        self.sampler = DistributedSampler(train, seed=cfg.seed)
        self.loader = DataLoader(train, batch_size=cfg.batch, sampler=self.sampler)
        self.count = 0

    def flat(self):
        return parameters_to_vector(self.net.parameters()).detach().clone()

    def load(self, flat):
        vector_to_parameters(flat, self.net.parameters())

    def epoch(self, e):
        self.sampler.set_epoch(e)
        total = 0.0
        for x, y in self.loader:
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.count += 1
            if self.count % self.cfg.mix_every == 0:
                self.load(self.ring.mix(self.flat()))
            total += loss.item()
        return total / len(self.loader)

    def consensus(self):
        flat = self.flat()
        mean = flat.clone()
        dist.all_reduce(mean)
        mean /= self.ring.world
        gap = (flat - mean).norm().reshape(1)
        dist.all_reduce(gap, op=dist.ReduceOp.MAX)
        return mean, gap.item(), mean.norm().item()

    @torch.no_grad()
    def accuracy(self):
        x, y = self.test.tensors
        return (self.net(x).argmax(1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--mix-every", type=int, default=Config.mix_every)
    a = ap.parse_args()
    cfg = Config(epochs=a.epochs, mix_every=a.mix_every)
    dist.init_process_group("gloo")
    node = Node(cfg)
    rank, world = node.ring.rank, node.ring.world
    for e in range(cfg.epochs):
        if e == cfg.epochs * 2 // 3:
            for g in node.opt.param_groups:
                g["lr"] = cfg.lr * 0.2
        loss = node.epoch(e)
        _, gap, size = node.consensus()
        info = [None] * world
        dist.all_gather_object(info, (round(loss, 4), round(node.accuracy(), 3)))
        if rank == 0:
            print(f"epoch {e} (loss, accuracy) per node {info} consensus gap {gap:.4f} of {size:.2f}", flush=True)
    mean, _, _ = node.consensus()
    node.load(mean)
    if rank == 0:
        os.makedirs("runs/clove", exist_ok=True)
        torch.save(node.net.state_dict(), "runs/clove/consensus.pt")
        print(f"averaged model accuracy {node.accuracy():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
