"""Class-incremental learning: new classes arrive in phases and the classifier grows."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class IncrementalNet(nn.Module):
    def __init__(self, in_dim, feat_dim=128):
        super().__init__()
        self.in_dim = in_dim
        self.backbone = nn.Sequential(
            nn.Linear(in_dim, 256), nn.LayerNorm(256), nn.ReLU(),
            nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU(),
            nn.Linear(256, feat_dim), nn.ReLU(),
        )
        self.feat_dim = feat_dim
        self.heads = nn.ModuleList()

    @property
    def num_classes(self):
        return sum(h.out_features for h in self.heads)

    def add_head(self, new_classes):
        self.heads.append(nn.Linear(self.feat_dim, new_classes))

    def forward(self, x):
        feat = self.backbone(x)
        return torch.cat([head(feat) for head in self.heads], 1)


class PhaseData:
    """Gaussian clusters on curved manifolds, a few classes a phase with a small replay share."""

    def __init__(self, in_dim, classes, per_class=320, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for c in range(classes):
            centre = torch.randn(in_dim, generator=g)
            axes = torch.randn(3, in_dim, generator=g)
            z = torch.randn(per_class, 3, generator=g)
            x = centre + z @ axes + 0.6 * torch.randn(per_class, in_dim, generator=g)
            self.items.append(x)

    def phase(self, old, new, replay=80):
        xs = [self.items[c][:replay] for c in range(old)] + [self.items[c][:256] for c in range(old, new)]
        ys = [torch.full((len(x),), c) for c, x in enumerate(xs)]
        return TensorDataset(torch.cat(xs), torch.cat(ys))

    def heldout(self, upto):
        xs = [self.items[c][256:] for c in range(upto)]
        return torch.cat(xs), torch.cat([torch.full((len(x),), c) for c, x in enumerate(xs)])


class Learner:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.data = PhaseData(args.in_dim, args.base + args.phases * args.increment)
        net = IncrementalNet(args.in_dim)
        net.add_head(args.base)
        self.net = DDP(net)
        torch.manual_seed(args.seed + 1 + self.rank)

    def grow(self, total):
        self.net.module.add_head(total - self.net.module.num_classes)

    def fit_phase(self, old, new):
        if old:
            self.grow(new)
        ds = self.data.phase(old, new)
        sampler = DistributedSampler(ds, shuffle=True, seed=self.args.seed, drop_last=True)
        loader = DataLoader(ds, self.args.batch_size, sampler=sampler, drop_last=True)
        opt = torch.optim.SGD(self.net.parameters(), lr=self.args.lr, momentum=0.9, weight_decay=5e-4)
        for epoch in range(self.args.epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                x = x + self.args.jitter * torch.randn_like(x)
                loss = F.cross_entropy(self.net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
        acc = self.evaluate(new)
        if self.rank == 0:
            print(f"classes {new} loss {loss.item():.4f} acc {acc:.3f}", flush=True)

    @torch.no_grad()
    def evaluate(self, upto):
        net = self.net.module.eval()
        x, y = self.data.heldout(upto)
        share = slice(self.rank, None, self.world)
        hits = torch.tensor([(net(x[share]).argmax(1) == y[share]).sum().item(), len(y[share])], dtype=torch.float64)
        dist.all_reduce(hits)
        net.train()
        return (hits[0] / hits[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--base", type=int, default=8)
    ap.add_argument("--increment", type=int, default=4)
    ap.add_argument("--phases", type=int, default=3)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--in-dim", type=int, default=48)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--jitter", type=float, default=0.1)
    ap.add_argument("--seed", type=int, default=13)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    learner = Learner(args)
    old = 0
    for phase in range(args.phases + 1):
        new = args.base + phase * args.increment
        learner.fit_phase(old, new)
        old = new
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
