"""Cross-validated ensemble: the ranks share the folds between them, every fold is an own model."""
import argparse
import json
import logging
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("cv")


def dataset(n=900, d=14, seed=7):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * np.abs(x[:, 3]) + 0.1 * rng.normal(size=n)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.float32))


def make_folds(n, k, seed):
    """Same permutation on all ranks."""
    order = np.random.default_rng(seed).permutation(n)
    return [torch.from_numpy(np.sort(f)) for f in np.array_split(order, k)]


class Regressor(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 64), nn.SiLU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
        self.register_buffer("mu", torch.zeros(d))
        self.register_buffer("sd", torch.ones(d))

    def fit_scaler(self, x):
        self.mu.copy_(x.mean(0))
        self.sd.copy_(x.std(0))

    def forward(self, x):
        return self.net((x - self.mu) / self.sd).squeeze(-1)


class FoldTrainer:
    def __init__(self, fold, x, y, folds, args):
        self.fold, self.a = fold, args
        held = folds[fold]
        mask = torch.ones(len(x), dtype=torch.bool)
        mask[held] = False
        self.xt, self.yt, self.xv, self.yv, self.held = x[mask], y[mask], x[held], y[held], held
        torch.manual_seed(args.seed * 100 + fold)
        self.model = Regressor(x.shape[1])
        self.model.fit_scaler(self.xt)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=1e-3)
        self.sched = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, factor=0.5, patience=2)
        self.g = torch.Generator().manual_seed(args.seed * 100 + fold)

    def val_loss(self):
        self.model.eval()
        with torch.no_grad():
            v = F.mse_loss(self.model(self.xv), self.yv).item()
        self.model.train()
        return v

    def fit(self):
        best, state, bad = float("inf"), None, 0
        for epoch in range(self.a.epochs):
            order = torch.randperm(len(self.xt), generator=self.g)
            for j in order.split(self.a.batch):
                loss = F.mse_loss(self.model(self.xt[j]), self.yt[j])
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
                self.opt.step()
            v = self.val_loss()
            self.sched.step(v)
            if v < best - 1e-4:
                best, bad = v, 0
                state = {k: t.clone() for k, t in self.model.state_dict().items()}
            else:
                bad += 1
            if bad > self.a.patience:
                break
        self.model.load_state_dict(state)
        return best, epoch + 1

    @torch.no_grad()
    def out_of_fold(self):
        self.model.eval()
        return self.held, self.model(self.xv)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folds", type=int, default=6)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--patience", type=int, default=4)
    p.add_argument("--batch", type=int, default=25)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--out", default="cv_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[rank {rank}] %(message)s")
    x, y = dataset()
    folds = make_folds(len(x), a.folds, a.seed)
    oof, report = torch.zeros(len(x)), []
    seen = torch.zeros(len(x))
    os.makedirs(a.out, exist_ok=True)
    for fold in range(rank, a.folds, world):
        t = FoldTrainer(fold, x, y, folds, a)
        best, epochs = t.fit()
        log.info("fold %d best mse %.4f after %d epochs", fold, best, epochs)
        idx, pred = t.out_of_fold()
        oof[idx] = pred
        seen[idx] += 1
        report.append({"fold": fold, "mse": best, "epochs": epochs})
        torch.save(t.model.state_dict(), os.path.join(a.out, f"fold{fold}.pt"))
    dist.all_reduce(oof)
    dist.all_reduce(seen)
    assert bool((seen == 1).all())
    everything = [None] * world
    dist.all_gather_object(everything, report)
    if rank == 0:
        rows = sorted((r for part in everything for r in part), key=lambda r: r["fold"])
        r2 = 1 - ((oof - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        log.info("out-of-fold R2 %.4f over %d folds", r2.item(), len(rows))
        with open(os.path.join(a.out, "report.json"), "w") as f:
            json.dump({"r2": r2.item(), "folds": rows}, f, indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
