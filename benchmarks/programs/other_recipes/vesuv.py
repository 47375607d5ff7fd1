"""Bagged deep ensemble: every rank trains its own member on a bootstrap sample, predictions are pooled."""
import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

log = logging.getLogger("ensemble")


@dataclass
class Config:
    members_per_rank: int = 2
    epochs: int = 9
    batch_size: int = 20
    lr: float = 0.015
    seed: int = 88


class BootstrapSampler(Sampler):
    """Draws the bag once (with replacement), then permutes the bag anew for each epoch."""

    def __init__(self, n, member_seed):
        self.gen = torch.Generator().manual_seed(member_seed)
        self.bag = torch.randint(0, n, (n,), generator=self.gen)

    def __len__(self):
        return len(self.bag)

    def __iter__(self):
        order = torch.randperm(len(self.bag), generator=self.gen)
        return iter(self.bag[order].tolist())

    def out_of_bag(self):
        mask = torch.ones(len(self.bag), dtype=torch.bool)
        mask[self.bag] = False
        return mask.nonzero().flatten()


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    r = torch.rand(n, generator=g) * 0.9 + 0.1
    a = 4 * r + y * 2.094 + 0.2 * torch.randn(n, generator=g)
    return torch.stack([r * a.sin(), r * a.cos()], 1), y


class Member:
    def __init__(self, cfg, data, index):
        self.index, self.cfg = index, cfg
        self.sampler = BootstrapSampler(len(data), cfg.seed * 1000 + index)
        self.loader = DataLoader(data, cfg.batch_size, sampler=self.sampler)
        torch.manual_seed(cfg.seed + index)
        width = 24 + 8 * (index % 2)
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr)
        self.data = data

    def train(self):
        for _ in range(self.cfg.epochs):
            for x, y in self.loader:
                loss = nn.functional.cross_entropy(self.net(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()

    @torch.no_grad()
    def oob_accuracy(self):
        x, y = (t[self.sampler.out_of_bag()] for t in self.data.tensors)
        return (self.net(x).argmax(1) == y).float().mean().item()

    @torch.no_grad()
    def predict(self, x):
        return self.net(x).softmax(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--members-per-rank", type=int, default=Config.members_per_rank)
    p.add_argument("--epochs", type=int, default=Config.epochs)
    a = p.parse_args()
    cfg = Config(members_per_rank=a.members_per_rank, epochs=a.epochs)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(*spirals(400, 1))
    xt, yt = spirals(300, 2)
    members = [Member(cfg, data, rank * cfg.members_per_rank + k) for k in range(cfg.members_per_rank)]
    for m in members:
        m.train()
        log.info("rank %d member %d oob %.3f", rank, m.index, m.oob_accuracy())
    pooled = sum(m.predict(xt) for m in members)
    single = torch.tensor([(m.predict(xt).argmax(1) == yt).float().mean() for m in members]).sum()
    dist.all_reduce(pooled)
    dist.all_reduce(single)
    out = Path("runs") / Path(__file__).stem
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    for m in members:
        torch.save(m.net.state_dict(), out / f"member{m.index}.pt")
    if rank == 0:
        count = cfg.members_per_rank * world
        acc = (pooled.argmax(1) == yt).float().mean()
        log.info("%d members: mean accuracy %.3f, ensemble %.3f", count, single / count, acc)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
