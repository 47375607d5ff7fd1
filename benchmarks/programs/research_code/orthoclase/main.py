"""k-fold cross-validation, every fold trained with DDP over all ranks."""
import argparse
import json
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Signals(Dataset):
    """Noisy few-sample data where memorising pays off."""
    classes = 6

    def __init__(self, n, seed, jitter=0.15):
        rng = np.random.default_rng(seed)
        centers = rng.normal(size=(self.classes, 30))
        self.y = rng.integers(0, self.classes, n)
        self.x = (0.45 * centers[self.y] + rng.normal(size=(n, 30))).astype(np.float32)
        self.jitter = jitter

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        noise = np.random.normal(0, self.jitter, self.x.shape[1]).astype(np.float32)
        return torch.from_numpy(self.x[i] + noise), int(self.y[i])


class Clean(Dataset):
    def __init__(self, base):
        self.base = base

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        return torch.from_numpy(self.base.x[i]), int(self.base.y[i])


def stratified_folds(labels, k, seed):
    """k index arrays with about the same class shares."""
    rng = np.random.default_rng(seed)
    buckets = [[] for _ in range(k)]
    for c in np.unique(labels):
        idx = np.where(labels == c)[0]
        rng.shuffle(idx)
        for j, part in enumerate(np.array_split(idx, k)):
            buckets[j].extend(part.tolist())
    return [sorted(b) for b in buckets]


def mlp():
    return nn.Sequential(nn.Linear(30, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, Signals.classes))


def train_fold(fold, folds, ds, a):
    val_idx = folds[fold]
    train_idx = [i for j, f in enumerate(folds) if j != fold for i in f]
    train, val = Subset(ds, train_idx), Subset(Clean(ds), val_idx)
    sampler = DistributedSampler(train, seed=a.seed + fold, drop_last=True)
    loader = DataLoader(train, a.batch, sampler=sampler)
    model = DDP(mlp())
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs * len(loader))
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        s = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            s += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(s)
    acc, n = score(model.module, val)
    return {"fold": fold, "loss": (s[0] / s[1]).item(), "acc": acc, "val": n, "train": len(train)}


@torch.no_grad()
def score(net, val):
    """The ranks take turns through the held-out samples."""
    net.eval()
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = [val[i] for i in range(rank, len(val), world)]
    x, y = torch.stack([m[0] for m in mine]), torch.tensor([m[1] for m in mine])
    t = torch.tensor([(net(x).argmax(1) == y).sum(), len(y)], dtype=torch.float64)
    dist.all_reduce(t)
    return (t[0] / t[1]).item(), int(t[1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folds", type=int, default=4)
    p.add_argument("--samples", type=int, default=360)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=15)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=66)
    p.add_argument("--out", default="kfold_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    set_seed(a.seed + rank)
    ds = Signals(a.samples, seed=a.seed)
    folds = stratified_folds(ds.y, a.folds, a.seed)
    rows = []
    for fold in range(a.folds):
        rows.append(train_fold(fold, folds, ds, a))
        if rank == 0:
            r = rows[-1]
            print(f"fold {fold}: train {r['train']} val {r['val']} loss {r['loss']:.4f} acc {r['acc']:.3f}", flush=True)
    if rank == 0:
        accs = np.array([r["acc"] for r in rows])
        print(f"cv accuracy {accs.mean():.3f} +- {accs.std():.3f}", flush=True)
        os.makedirs(a.out, exist_ok=True)
        with open(os.path.join(a.out, "cv.json"), "w") as f:
            json.dump(rows, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
