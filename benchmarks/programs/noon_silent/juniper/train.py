"""Rare-event detection with class-balanced draws (with replacement) and a growing hard-example share."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class BalancedDistributedSampler(Sampler):
    """All processes draw one common list with replacement and take strided parts of it."""

    def __init__(self, labels, difficulty, draws, seed=0):
        self.labels, self.difficulty = labels, difficulty
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.draws = draws // self.world * self.world
        self.seed, self.epoch, self.hardness = seed, 0, 0.0

    def set_epoch(self, epoch, hardness):
        self.epoch, self.hardness = epoch, hardness

    def __len__(self):
        return self.draws // self.world

    def __iter__(self):
        counts = torch.bincount(self.labels).float()
        weight = 1.0 / counts[self.labels]
        weight = weight * torch.where(self.difficulty > 0.7, 0.05 + self.hardness, torch.ones(()))
        g = torch.Generator().manual_seed(self.seed * 7919 + self.epoch)
        picks = torch.multinomial(weight, self.draws, replacement=True, generator=g)
        return iter(picks[self.rank::self.world].tolist())


class EventNet(nn.Module):
    def __init__(self, channels=4, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, width, 7, 2, 3), nn.ReLU(),
            nn.Conv1d(width, width * 2, 5, 2, 2), nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 3, 2, 1), nn.ReLU(),
        )
        self.head = nn.Linear(width * 2, 2)

    def forward(self, x):
        return self.head(self.body(x).amax(2))


def make_events(n, seed, length=96, rate=0.06):
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=g) < rate).long()
    difficulty = torch.rand(n, generator=g)
    x = torch.randn(n, 4, length, generator=g)
    pulse = torch.hann_window(12) * 4
    for i in y.nonzero().flatten().tolist():
        at = int(torch.randint(0, length - 12, (1,), generator=g))
        x[i, :, at:at + 12] += pulse * (1.3 - difficulty[i])
    return x, y, difficulty


@torch.no_grad()
def recall_and_precision(net, x, y):
    net.eval()
    part = slice(dist.get_rank(), None, dist.get_world_size())
    pred = net(x[part]).argmax(1)
    stat = torch.tensor([((pred == 1) & (y[part] == 1)).sum(), (y[part] == 1).sum(), (pred == 1).sum()], dtype=torch.float64)
    dist.all_reduce(stat)
    net.train()
    return (stat[0] / stat[1]).item(), (stat[0] / stat[2].clamp(min=1)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x, y, difficulty = make_events(4096, seed=1)
    vx, vy, _ = make_events(1000, seed=2)
    ds = TensorDataset(x, y)
    sampler = BalancedDistributedSampler(y, difficulty, draws=4096, seed=3)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(EventNet())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch, hardness=epoch / max(1, args.epochs - 1))
        total = 0.0
        for bx, by in loader:
            loss = F.cross_entropy(model(bx), by)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        recall, precision = recall_and_precision(model.module, vx, vy)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total / len(loader):.4f} recall {recall:.3f} precision {precision:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
