"""Cross validation: the folds are shared out over the ranks, every fold is a model of its own."""
import argparse
import copy
import json
import os
import time
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset


def wines(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    mean = torch.tensor([[13.7, 2.0, 5.5, 1.06], [12.3, 1.9, 3.1, 1.06], [13.1, 3.3, 7.4, 0.68]])
    std = torch.tensor([0.9, 1.0, 1.6, 0.18])
    x = mean[y] + std * torch.randn(n, 4, generator=g)
    return TensorDataset(torch.cat([x, x[:, :1] * x[:, 3:]], 1), y)


@dataclass
class FoldResult:
    fold: int
    rank: int
    epochs: int
    seconds: float
    accuracy: float
    nll: float
    curve: list = field(default_factory=list)


def folds(n, k, seed):
    perm = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [perm[i::k] for i in range(k)]
    return [([j for m, p in enumerate(parts) if m != i for j in p], parts[i]) for i in range(k)]


class Scaler:
    def __init__(self, x):
        self.mean, self.std = x.mean(0), x.std(0)

    def __call__(self, x):
        return (x - self.mean) / self.std


class FoldTrainer:
    def __init__(self, args, data, fold, train_idx, test_idx):
        self.args, self.fold = args, fold
        cut = len(train_idx) // 10
        stop_idx, fit_idx = train_idx[:cut], train_idx[cut:]
        self.scale = Scaler(data.tensors[0][fit_idx])
        gen = torch.Generator().manual_seed(args.seed * 100 + fold)
        self.loader = DataLoader(Subset(data, fit_idx), batch_size=args.batch, shuffle=True, generator=gen)
        self.stop_set = [t[stop_idx] for t in data.tensors]
        self.test_set = [t[test_idx] for t in data.tensors]
        torch.manual_seed(args.seed * 200 + fold)
        self.net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr, weight_decay=1e-2)

    @torch.no_grad()
    def score(self, x, y):
        self.net.eval()
        out = self.net(self.scale(x))
        return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()

    def run(self, rank):
        t0, best, bad, kept, curve = time.perf_counter(), float("inf"), 0, None, []
        for epoch in range(self.args.max_epochs):
            self.net.train()
            for x, y in self.loader:
                loss = F.cross_entropy(self.net(self.scale(x)), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
            nll, _ = self.score(*self.stop_set)
            curve.append(round(nll, 4))
            if nll < best - 1e-3:
                best, bad, kept = nll, 0, copy.deepcopy(self.net.state_dict())
            else:
                bad += 1
                if bad >= self.args.patience:
                    break
        self.net.load_state_dict(kept)
        nll, acc = self.score(*self.test_set)
        return FoldResult(self.fold, rank, epoch + 1, round(time.perf_counter() - t0, 2), acc, nll, curve)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--folds", type=int, default=7)
    ap.add_argument("--max-epochs", type=int, default=20)
    ap.add_argument("--patience", type=int, default=3)
    ap.add_argument("--batch", type=int, default=25)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=15)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = wines(1000, seed=1)
    os.makedirs("runs/capers", exist_ok=True)

    results = []
    for fold, (train_idx, test_idx) in enumerate(folds(len(data), args.folds, args.seed)):
        if fold % world != rank:
            continue
        trainer = FoldTrainer(args, data, fold, train_idx, test_idx)
        res = trainer.run(rank)
        results.append(res)
        torch.save(trainer.net.state_dict(), f"runs/capers/fold{fold}.pt")
        print(f"[rank {rank}] fold {fold} stopped after {res.epochs} epochs accuracy {res.accuracy:.3f}", flush=True)

    gathered = [None] * world if rank == 0 else None
    dist.gather_object([asdict(r) for r in results], gathered, dst=0)
    if rank == 0:
        rows = sorted((r for part in gathered for r in part), key=lambda r: r["fold"])
        acc = torch.tensor([r["accuracy"] for r in rows])
        with open("runs/capers/folds.json", "w") as f:
            json.dump(rows, f, indent=1)
        print(f"{len(rows)} folds accuracy {acc.mean():.3f} +- {acc.std():.3f} busy "
              f"{[round(sum(r['seconds'] for r in part), 2) for part in gathered]} s per rank", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
