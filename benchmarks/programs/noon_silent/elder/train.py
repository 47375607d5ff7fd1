"""Graph property regression with dense message passing (DDP)."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.own, self.nbr = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, h, adj):
        deg = adj.sum(-1, keepdim=True).clamp(min=1)
        return h + F.silu(self.norm(self.own(h) + adj @ self.nbr(h) / deg))


class GraphNet(nn.Module):
    def __init__(self, feats, dim=96, depth=3):
        super().__init__()
        self.inp = nn.Linear(feats, dim)
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(depth))
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, x, adj):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, adj)
        return self.out(h.mean(1)).squeeze(-1)


def make_graphs(n, nodes=16, feats=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    adj = (torch.rand(n, nodes, nodes, generator=g) < 0.2).float()
    adj = ((adj + adj.transpose(1, 2)) > 0).float()
    x = torch.randn(n, nodes, feats, generator=g)
    w = torch.randn(feats, generator=torch.Generator().manual_seed(9))
    s = x @ w
    y = torch.tanh((adj * s[:, :, None] * s[:, None, :]).sum((1, 2)) / 60)
    return TensorDataset(x, adj, y + 0.25 * torch.randn(n, generator=g))


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(1, self.count)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(GraphNet(8))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.opt, factor=0.5, patience=args.patience, threshold=5e-3)
        train, valid = make_graphs(2048, seed=1), make_graphs(256, seed=2)
        self.sampler = DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True)
        self.train_loader = DataLoader(train, args.batch_size, sampler=self.sampler, drop_last=True)
        self.valid_loader = DataLoader(valid, 64, sampler=DistributedSampler(valid, shuffle=False))

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        meter = Meter()
        for x, adj, y in self.train_loader:
            loss = F.mse_loss(self.model(x, adj), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            meter.update(loss.item(), len(y))
        return meter.avg

    @torch.no_grad()
    def validate(self):
        net = self.model.module.eval()
        meter = Meter()
        for x, adj, y in self.valid_loader:
            meter.update(F.mse_loss(net(x, adj), y).item(), len(y))
        net.train()
        return meter.avg

    def fit(self):
        for epoch in range(self.args.epochs):
            train_loss = self.train_epoch(epoch)
            valid_loss = self.validate()
            self.plateau.step(valid_loss)
            if self.rank == 0:
                lr = self.opt.param_groups[0]["lr"]
                print(f"epoch {epoch} train {train_loss:.4f} valid {valid_loss:.4f} lr {lr:.2e}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=14)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--patience", type=int, default=1)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    trainer.fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
