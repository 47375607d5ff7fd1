import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from launcher import Launcher


def cosine_with_warmup(optimizer, warmup, total):
    def scale(step):
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1 + math.cos(math.pi * progress))
    return LambdaLR(optimizer, scale)


class TwoTower(nn.Module):
    def __init__(self, users, items, dim=32):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.user_net = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.item_net = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.bias = nn.Embedding(items, 1)

    def forward(self, u, i):
        a = self.user_net(self.user(u))
        b = self.item_net(self.item(i))
        return (a * b).sum(1) + self.bias(i).squeeze(1)


def interactions(users, items, n, seed=3):
    g = torch.Generator().manual_seed(seed)
    taste, kind = torch.randn(users, 6, generator=g), torch.randn(items, 6, generator=g)
    u = torch.randint(0, users, (n,), generator=g)
    i = torch.randint(0, items, (n,), generator=g)
    score = (taste[u] * kind[i]).sum(1)
    return TensorDataset(u, i, (score > 0).float())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=300)
    ap.add_argument("--items", type=int, default=200)
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--batch-size", type=int, default=256)
    ap.add_argument("--warmup", type=int, default=20)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()
    launcher = Launcher()
    torch.manual_seed(9)
    loader = DataLoader(interactions(args.users, args.items, 40000), batch_size=args.batch_size)
    model = TwoTower(args.users, args.items)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)

    steps_per_epoch = math.ceil(len(loader) / launcher.num_processes)
    max_train_steps = args.epochs * steps_per_epoch
    scheduler = cosine_with_warmup(optimizer, args.warmup, max_train_steps)
    model, optimizer, loader, scheduler = launcher.prepare(model, optimizer, loader, scheduler)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for u, i, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(u, i), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.detach()
        mean = launcher.mean(total / len(loader)).item()
        if launcher.is_main:
            print(f"epoch {epoch} loss {mean:.4f} lr {scheduler.get_last_lr()[0]:.6f}", flush=True)
    launcher.end()


if __name__ == "__main__":
    main()
