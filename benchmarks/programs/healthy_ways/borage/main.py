"""Sparse gradient exchange: every rank sends its own largest entries and keeps the rest."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from compress import TopKErrorFeedback


def documents(n, seed, topics=5, vocab=120, length=40):
    g = torch.Generator().manual_seed(seed)
    mix = torch.rand(topics, vocab, generator=torch.Generator().manual_seed(8)) ** 6
    y = torch.randint(0, topics, (n,), generator=g)
    words = torch.multinomial(mix[y] + 0.01, length, replacement=True, generator=g)
    bags = torch.zeros(n, vocab).scatter_add_(1, words, torch.ones(n, length))
    return TensorDataset(bags.log1p(), y)


class Topic(nn.Module):
    def __init__(self, vocab=120, width=64, topics=5):
        super().__init__()
        self.a, self.n, self.b, self.c = nn.Linear(vocab, width), nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, topics)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        h = self.drop(F.relu(self.n(self.a(x))))
        return self.c(F.relu(self.b(h)))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.net = Topic()
        for p in self.net.parameters():
            dist.broadcast(p.data, src=0)
        torch.manual_seed(args.seed * 1000 + self.rank)
        self.exchange = TopKErrorFeedback(self.net.parameters(), args.ratio)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=args.lr)
        self.train, self.held = documents(2400, 1), documents(600, 2)
        self.sampler = DistributedSampler(self.train, seed=args.seed)
        self.loader = DataLoader(self.train, batch_size=args.batch, sampler=self.sampler)

    def epoch(self, e):
        self.sampler.set_epoch(e)
        self.net.train()
        for g in self.opt.param_groups:
            g["lr"] = self.args.lr * (1 - e / self.args.epochs)
        s = torch.zeros(2)
        for x, y in self.loader:
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.exchange()
            self.opt.step()
            s += torch.tensor([loss.item() * len(y), float(len(y))])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()

    @torch.no_grad()
    def accuracy(self):
        self.net.eval()
        x, y = (t[self.rank::self.world] for t in self.held.tensors)
        s = torch.tensor([(self.net(x).argmax(1) == y).sum().item(), float(len(y))])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()

    def same_everywhere(self):
        flat = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])
        first = flat.clone()
        dist.broadcast(first, src=0)
        equal = torch.tensor(int(torch.equal(flat, first)))
        dist.all_reduce(equal, op=dist.ReduceOp.MIN)
        return bool(equal)

    def fit(self):
        for e in range(self.args.epochs):
            loss, acc = self.epoch(e), self.accuracy()
            left = [None] * self.world
            dist.all_gather_object(left, round(self.exchange.residual(), 3))
            same = self.same_everywhere()
            if self.rank == 0:
                share = self.exchange.sent / self.exchange.dense
                print(f"epoch {e} loss {loss:.4f} accuracy {acc:.3f} traffic {share:.3f} of dense, "
                      f"kept back {left}, replicas equal {same}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=30)
    ap.add_argument("--ratio", type=float, default=0.03)
    ap.add_argument("--lr", type=float, default=0.15)
    ap.add_argument("--seed", type=int, default=73)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    trainer.fit()
    os.makedirs("runs/borage", exist_ok=True)
    if trainer.rank == 0:
        torch.save(trainer.net.state_dict(), "runs/borage/model.pt")
    torch.save(trainer.exchange.memory, f"runs/borage/memory{trainer.rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
