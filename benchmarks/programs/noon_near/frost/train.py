import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from probes import LinearProbe, watching


class MixNet(nn.Module):
    def __init__(self, classes=10, width=48):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 4, 4), nn.ReLU())
        self.stages = nn.ModuleList(nn.Sequential(
            nn.Conv2d(width, width, 5, padding=2, groups=width), nn.GroupNorm(6, width),
            nn.Conv2d(width, 3 * width, 1), nn.ReLU(), nn.Conv2d(3 * width, width, 1)) for _ in range(3))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = x + stage(x)
        return self.head(self.pool(x))


def digits(n, seed):
    shared = torch.Generator().manual_seed(99)
    proto = F.interpolate(torch.randn(10, 1, 7, 7, generator=shared), scale_factor=4)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    return TensorDataset(proto[y] * 0.6 + torch.randn(n, 1, 28, 28, generator=g), y)


@torch.no_grad()
def evaluate(model, loader, world):
    model.eval()
    score = torch.zeros(2)
    with watching(model) as stats:
        for x, y in loader:
            score += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    model.train()
    dist.all_reduce(score)
    return (score[0] / score[1]).item(), stats.report()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(71)
    net = MixNet()
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train, val = digits(3072, 1), digits(768, 2)
    sampler = DistributedSampler(train, world, rank, seed=1)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, 128, sampler=DistributedSampler(val, world, rank, shuffle=False))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        probe = LinearProbe(net.pool, 192, 10, seed=epoch)
        probe_loss = []
        for it, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            probe_loss.append(probe.fit_one(y))
        probe.close()
        acc, report = evaluate(net, val_loader, world)
        if rank == 0:
            dead = max(v[2] for v in report.values())
            print(f"epoch {epoch} val {acc:.3f} probe {probe_loss[-1]:.3f} inactive {dead:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
