"""K-fold cross-validation with accelerate, a fresh model per fold."""
import argparse
import statistics

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def dataset(n=600):
    g = torch.Generator().manual_seed(12)
    x = torch.rand(n, 6, generator=g)
    y = (x[:, 0] * 4 + x[:, 1] * x[:, 2] * 3).floor().long().clamp(max=4)
    return TensorDataset(x, y)


def folds(n, k):
    perm = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    size = n // k
    for f in range(k):
        held = perm[f * size:(f + 1) * size]
        yield f, sorted(set(perm) - set(held)), held


def build():
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5))


def evaluate(accelerator, model, loader):
    model.eval()
    hits, total = 0, 0
    with torch.no_grad():
        for x, y in loader:
            pred, ref = accelerator.gather_for_metrics((model(x).argmax(1), y))
            hits += int((pred == ref).sum())
            total += len(ref)
    return hits / total


def run_fold(accelerator, data, train_idx, held_idx, args):
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train = DataLoader(Subset(data, train_idx), batch_size=args.bs, shuffle=True)
    held = DataLoader(Subset(data, held_idx), batch_size=64)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(train) + 1)
    model, opt, train, held, sched = accelerator.prepare(model, opt, train, held, sched)
    for _ in range(args.epochs):
        model.train()
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
            sched.step()
    score = evaluate(accelerator, model, held)
    accelerator.free_memory(model, opt, train, held, sched)
    return score


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--k", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--bs", type=int, default=25)
    ap.add_argument("--lr", type=float, default=8e-3)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    data = dataset()
    scores = []
    for fold, train_idx, held_idx in folds(len(data), args.k):
        set_seed(100 + fold)
        scores.append(run_fold(accelerator, data, train_idx, held_idx, args))
        accelerator.print(f"fold {fold} accuracy {scores[-1]:.3f}")
    accelerator.print(f"mean {statistics.mean(scores):.3f} stdev {statistics.stdev(scores):.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
