"""Bagged deep ensemble: every process fits one member on its own bootstrap sample.

There is no gradient exchange at all. The members meet twice: for the out-of-bag estimate (each sample
is scored by the members that did not see it) and for the final vote on the test set.
"""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset


class BootstrapSampler(Sampler):
    """n indices drawn once with replacement; they are reshuffled every epoch."""

    def __init__(self, n, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.bag = torch.randint(n, (n,), generator=self.gen)

    def __iter__(self):
        yield from self.bag[torch.randperm(len(self.bag), generator=self.gen)].tolist()

    def __len__(self):
        return len(self.bag)

    def out_of_bag(self, n):
        mask = torch.ones(n, dtype=torch.bool)
        mask[self.bag] = False
        return mask


def friedman(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 10, generator=g)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y + torch.randn(n, generator=g)) / 5.0


class Member(nn.Module):
    """Mean and variance network."""

    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2))

    def forward(self, x):
        mu, raw = self.net(x).unbind(-1)
        return mu, F.softplus(raw) + 1e-3


def nll(mu, var, y):
    return 0.5 * (var.log() + (y - mu) ** 2 / var).mean()


def combine(mu, var):
    """Mixture moments over all the members."""
    stats = torch.stack([mu, var + mu ** 2])
    dist.all_reduce(stats)
    stats /= dist.get_world_size()
    return stats[0], stats[1] - stats[0] ** 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=384)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(900 + rank)          # different initialisation is half of the ensemble's diversity
    net = Member(args.hidden + 32 * rank)  # widths may differ as well, nothing is averaged
    x, y = friedman(2400, seed=0)
    tx, ty = friedman(800, seed=1)
    sampler = BootstrapSampler(len(x), seed=rank)
    loader = DataLoader(TensorDataset(x, y), args.batch_size, sampler=sampler)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        t0, total = time.time(), 0.0
        for xb, yb in loader:
            mu, var = net(xb)
            loss = nll(mu, var, yb)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
            total += loss.item()
        logging.info("member %d epoch %d nll %.3f %.1fs", rank, epoch, total / len(loader), time.time() - t0)

    net.eval()
    with torch.no_grad():
        oob = sampler.out_of_bag(len(x)).float()
        mu, _ = net(x)
        votes = torch.stack([oob, oob * mu])
        dist.all_reduce(votes)
        seen = votes[0] > 0
        oob_mse = ((votes[1][seen] / votes[0][seen] - y[seen]) ** 2).mean().item()
        mu, var = net(tx)
        solo = nll(mu, var, ty).item()
        e_mu, e_var = combine(mu, var)
        joint = nll(e_mu, e_var, ty).item()
    logging.info("member %d: %d unique of %d, test nll alone %.3f, ensemble %.3f, oob mse %.3f",
                 rank, int(sampler.bag.unique().numel()), len(x), solo, joint, oob_mse)
    out = args.out or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    torch.save(net.state_dict(), os.path.join(out, f"member_{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
