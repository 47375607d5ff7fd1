"""Cross-validated Bayesian committee: a fold a process, SGLD with cyclical steps, snapshots pooled at the end."""
import argparse
import logging
import math

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("elm")


def moons(n, classes=3):
    g = torch.Generator().manual_seed(29)
    y = torch.arange(n) % classes
    t = torch.rand(n, generator=g) * 3.0
    ang = t * 1.6 + 2 * math.pi * y / classes
    x = torch.stack([t * ang.cos(), t * ang.sin()], 1) + 0.12 * torch.randn(n, 2, generator=g)
    return x, y


class CyclicalSGLD:
    """Zhang et al. 2020: cosine step size per cycle, noise and snapshots in the cold part only."""

    def __init__(self, params, n, lr, cycle_len, temperature, seed, prior=1e-4):
        self.params = list(params)
        self.n, self.lr0, self.cycle_len, self.temp, self.prior = n, lr, cycle_len, temperature, prior
        self.gen = torch.Generator().manual_seed(seed)
        self.mom = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    @property
    def phase(self):
        return (self.t % self.cycle_len) / self.cycle_len

    @torch.no_grad()
    def step(self):
        lr = 0.5 * self.lr0 * (1 + math.cos(math.pi * self.phase))
        for p, m in zip(self.params, self.mom):
            m.mul_(0.9).add_(p.grad + self.prior * p, alpha=-lr)
            if self.phase >= 0.7:
                std = math.sqrt(2 * 0.1 * lr * self.temp / self.n)
                m.add_(torch.randn(p.shape, generator=self.gen), alpha=std)
            p.add_(m)
            p.grad = None
        self.t += 1


class Chain:
    def __init__(self, fold, x, y, args):
        self.args = args
        torch.manual_seed(1000 + fold)
        self.net = nn.Sequential(nn.Linear(2, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 3))
        self.loader = DataLoader(TensorDataset(x, y), batch_size=args.batch, shuffle=True,
                                 generator=torch.Generator().manual_seed(2000 + fold))
        self.opt = CyclicalSGLD(self.net.parameters(), len(x), args.lr, len(self.loader) * args.cycle_epochs, 0.1, 3000 + fold)
        self.snapshots = []

    def run(self):
        for epoch in range(self.args.cycles * self.args.cycle_epochs):
            for x, y in self.loader:
                loss = F.cross_entropy(self.net(x), y)
                loss.backward()
                self.opt.step()
            if epoch % self.args.cycle_epochs >= self.args.cycle_epochs - 2:
                self.snapshots.append({k: v.detach().clone() for k, v in self.net.named_parameters()})
        return loss.detach()

    @torch.no_grad()
    def predict(self, x):
        return torch.stack([functional_call(self.net, s, (x,)).softmax(1) for s in self.snapshots]).mean(0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=6000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--cycles", type=int, default=4)
    ap.add_argument("--cycle-epochs", type=int, default=5)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    x, y = moons(args.rows + 1500)
    xt, yt = x[args.rows :], y[args.rows :]
    x, y = x[: args.rows], y[: args.rows]
    folds = list(StratifiedKFold(world, shuffle=True, random_state=5).split(np.zeros(len(y)), y.numpy()))
    fit, held = (torch.from_numpy(i) for i in folds[rank])
    chain = Chain(rank, x[fit], y[fit], args)
    loss = chain.run()

    p = chain.predict(x[held])
    stats = torch.stack([F.nll_loss(p.log(), y[held], reduction="sum"), (p.argmax(1) == y[held]).sum().float(), torch.tensor(float(len(held)))])
    everyone = torch.empty(world, 3)
    dist.all_gather_into_tensor(everyone.view(-1), stats)
    for f, (nll, hit, n) in enumerate(everyone.tolist()):
        log.info("fold %d held-out nll %.4f accuracy %.3f", f, nll / n, hit / n)
    committee = chain.predict(xt)
    dist.all_reduce(committee, op=dist.ReduceOp.AVG)
    log.info("cross-validated accuracy %.3f, committee of %d snapshots: %.3f (last loss %.3f)",
             (everyone[:, 1].sum() / everyone[:, 2].sum()).item(), world * len(chain.snapshots),
             (committee.argmax(1) == yt).float().mean().item(), loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
