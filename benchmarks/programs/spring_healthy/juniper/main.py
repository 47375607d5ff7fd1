"""K-fold cross-validation, every fold a distributed training of its own in the same processes."""
import argparse
import gc
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def table(n=4800, cols=30, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, cols, generator=g)
    w = torch.randn(cols, 8, generator=g) / cols ** 0.5
    y = torch.sin(2 * x @ w).sum(1) + 0.1 * torch.randn(n, generator=g)
    return x, y


class Regressor(nn.Module):
    def __init__(self, cols=30, width=192, p=0.05):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cols, width), nn.SiLU(), nn.Dropout(p), nn.Linear(width, width), nn.SiLU(), nn.Dropout(p), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


class Fold:
    def __init__(self, k, folds, n, rank, world):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(77))
        chunks = list(order.chunk(folds))
        self.held = chunks.pop(k)
        self.train = torch.cat(chunks)
        self.rank, self.world = rank, world

    def batches(self, epoch, size):
        perm = self.train[torch.randperm(len(self.train), generator=torch.Generator().manual_seed(epoch))]
        usable = len(perm) // (size * self.world) * size * self.world
        for s in range(0, usable, size * self.world):
            yield perm[s + self.rank * size:s + (self.rank + 1) * size]

    def held_part(self):
        return self.held[self.rank::self.world]


def run_fold(k, args, store, rank, world, x, y):
    dist.init_process_group("gloo", store=dist.PrefixStore(f"fold-{k}", store), rank=rank, world_size=world)
    torch.manual_seed(500 + 13 * k)
    model = DDP(Regressor())
    torch.manual_seed(9000 + 100 * k + rank)       # dropout masks of the ranks are independent
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    fold = Fold(k, args.folds, len(x), rank, world)
    for epoch in range(args.epochs):
        model.train()
        for idx in fold.batches(epoch, args.batch):
            loss = F.mse_loss(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
    model.eval()
    with torch.no_grad():
        idx = fold.held_part()
        pred = model.module(x[idx])
    sq = torch.stack([(pred - y[idx]).square().sum(), torch.tensor(float(len(idx)))])
    dist.all_reduce(sq)
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    lo, hi = w.clone(), w.clone()
    dist.all_reduce(lo, op=dist.ReduceOp.MIN)
    dist.all_reduce(hi, op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()
    return (sq[0] / sq[1]).item(), int(sq[1]), (hi - lo).max().item(), idx, pred


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--folds", type=int, default=5)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    store, rank, world = next(dist.rendezvous("env://", rank, world))
    x, y = table()
    seen = torch.zeros(len(x), dtype=torch.long)
    results = []
    for k in range(args.folds):
        mse, count, gap, idx, _ = run_fold(k, args, store, rank, world, x, y)
        seen[idx] += 1
        results.append(mse)
        logging.info("fold %d held-out %d mse %.5f weights apart by %.3g", k, count, mse, gap)
        gc.collect()
    dist.init_process_group("gloo", store=dist.PrefixStore("summary", store), rank=rank, world_size=world)
    dist.all_reduce(seen)
    assert (seen == 1).all()
    logging.info("mse %.5f +- %.5f, each of %d rows held out once", torch.tensor(results).mean(), torch.tensor(results).std(), len(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
