"""Matrix factorisation with side features on explicit ratings, plain DDP, two ranks."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

USERS, ITEMS = 400, 300


class Rater(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, dim), nn.Embedding(ITEMS, dim)
        self.deep = nn.Sequential(nn.Linear(2 * dim + 8, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i, side):
        a, b = self.user(u), self.item(i)
        return (a * b).sum(1) + self.deep(torch.cat([a, b, side], 1)).squeeze(1)


def ratings(seed, n):
    fix, g = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    pu, qi, w = torch.randn(USERS, 3, generator=fix), torch.randn(ITEMS, 3, generator=fix), torch.randn(8, generator=fix)
    u, i = torch.randint(USERS, (n,), generator=g), torch.randint(ITEMS, (n,), generator=g)
    side = torch.randn(n, 8, generator=g)
    return TensorDataset(u, i, side, (pu[u] * qi[i]).sum(1) + 0.5 * side @ w + 0.1 * torch.randn(n, generator=g))


@torch.no_grad()
def evaluate(model, data, rank, world):
    """Each rank scores its slice; rank 0 needs every prediction for the ranking report."""
    model.eval()
    u, i, side, y = (t[rank::world] for t in data.tensors)
    rows = list(zip(u.tolist(), i.tolist(), model.module(u, i, side).tolist(), y.tolist()))
    parts = [None] * world
    dist.all_gather_object(parts, rows)
    model.train()
    rows = [r for part in parts for r in part]
    return (sum((p - t) ** 2 for _, _, p, t in rows) / len(rows)) ** 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, held = ratings(1, 20000), ratings(2, 6000)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Rater())
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (u, i, side, y) in enumerate(loader):
            t0 = time.perf_counter()
            loss = (model(u, i, side) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            stats = [None] * world
            dist.all_gather_object(stats, {"loss": loss.item(), "ms": 1e3 * (time.perf_counter() - t0)})
            if rank == 0 and step % 100 == 0:
                worst = max(s["ms"] for s in stats)
                print(f"epoch {epoch} step {step} loss {sum(s['loss'] for s in stats) / world:.3f} slowest {worst:.1f} ms", flush=True)
        rmse = evaluate(model, held, rank, world)
        if rank == 0:
            print(f"epoch {epoch} held-out rmse {rmse:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
