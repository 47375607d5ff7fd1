import argparse
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from board import Board


def ratings(n, seed, users=400, items=300, k=6):
    g0, g = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    pu, qi = torch.randn(users, k, generator=g0), torch.randn(items, k, generator=g0)
    u, i = torch.randint(0, users, (n,), generator=g), torch.randint(0, items, (n,), generator=g)
    return TensorDataset(u, i, torch.sigmoid((pu[u] * qi[i]).sum(1) / k ** 0.5) + 0.05 * torch.randn(n, generator=g))


class Recommender(nn.Module):
    def __init__(self, users=400, items=300, k=24):
        super().__init__()
        self.u, self.i = nn.Embedding(users, k), nn.Embedding(items, k)
        self.f = nn.Sequential(nn.Linear(3 * k, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 1))

    def forward(self, u, i):
        a, b = self.u(u), self.i(i)
        return self.f(torch.cat([a, b, a * b], 1)).squeeze(1)


@torch.no_grad()
def evaluate_and_write(model, ds, path):
    """Full ranking report; small, so one process does it."""
    model.eval()
    u, i, y = ds.tensors
    p = torch.cat([model(a, b) for a, b in zip(u.split(1000), i.split(1000))])
    with open(path, "w") as f:
        for row in zip(u.tolist(), i.tolist(), y.tolist(), p.tolist()):
            f.write(json.dumps(row) + "\n")
    model.train()
    return F.mse_loss(p, y).sqrt().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--patience", type=int, default=3)
    ap.add_argument("--reports", default="reports")
    args = ap.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    rank = dist.get_rank()
    if rank == 0:
        os.makedirs(args.reports, exist_ok=True)
    board = Board("ratings")
    torch.manual_seed(0)
    train, val = ratings(40000, 1), ratings(20000, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler)
    model = DDP(Recommender())
    torch.manual_seed(100 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    best, bad = float("inf"), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for u, i, y in loader:
            loss = F.mse_loss(model(u, i), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            rmse = evaluate_and_write(model.module, val, os.path.join(args.reports, f"epoch{epoch}.jsonl"))
            bad = 0 if rmse < best else bad + 1
            best = min(best, rmse)
            board.post(f"epoch{epoch}", {"rmse": rmse, "stop": bad >= args.patience})
        verdict = board.read(f"epoch{epoch}")
        dist.monitored_barrier(timeout=timedelta(minutes=5), wait_all_ranks=True)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} rmse {verdict['rmse']:.4f} stop {verdict['stop']}", flush=True)
        if verdict["stop"]:
            break
    if rank == 0:
        torch.save(model.module.state_dict(), "rec.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
