"""Cross-validation with the folds dealt to the processes; predictions of left-out rows are put together at the end."""
import argparse
import json
import logging
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

logger = logging.getLogger("cv")


def soil_samples(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 7, generator=g)
    y = 1.5 * x[:, 0] - x[:, 1] * x[:, 2] + 0.7 * torch.sin(2 * x[:, 3]) + 0.3 * torch.randn(count, generator=g)
    return x, y


def fold_of_rows(count, folds, seed):
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    fold = torch.empty(count, dtype=torch.long)
    fold[order] = torch.arange(count) % folds
    return fold


class Fold:
    def __init__(self, number, args):
        torch.manual_seed(args.seed + number)
        self.number = number
        self.args = args
        self.net = nn.Sequential(nn.Linear(7, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 40),
                                 nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 1))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr, weight_decay=1e-2)

    def standardise(self, x):
        return (x - self.mean) / self.std

    def fit(self, x, y):
        self.mean, self.std = x.mean(0), x.std(0)
        x = self.standardise(x)
        self.net.train()
        for epoch in range(self.args.epochs):
            losses = []
            for pick in torch.randperm(len(y)).split(self.args.batch):
                if len(pick) < 2:
                    continue
                loss = F.mse_loss(self.net(x[pick]).squeeze(-1), y[pick])
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.no_grad()
    def predict(self, x):
        self.net.eval()
        return self.net(self.standardise(x)).squeeze(-1)

    def save(self, folder):
        torch.save({"fold": self.number, "mean": self.mean, "std": self.std, "net": self.net.state_dict()},
                   folder / f"fold_{self.number}.pt")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=901)
    ap.add_argument("--folds", type=int, default=5)
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=6e-3)
    ap.add_argument("--seed", type=int, default=90)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "soil_cv"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    x, y = soil_samples(args.rows, 3)
    fold = fold_of_rows(args.rows, args.folds, args.seed)

    left_out = torch.zeros(args.rows, dtype=torch.double)
    filled = torch.zeros(args.rows, dtype=torch.double)
    for number in range(rank, args.folds, world):
        out = fold == number
        job = Fold(number, args)
        loss = job.fit(x[~out], y[~out])
        left_out[out] = job.predict(x[out]).double()
        filled[out] = 1
        job.save(folder)
        logger.info("fold %d train %.4f left-out %.4f", number, loss, F.mse_loss(left_out[out].float(), y[out]).item())

    dist.reduce(left_out, dst=0)
    dist.reduce(filled, dst=0)
    if rank == 0:
        if not bool((filled == 1).all()):
            raise RuntimeError("some rows were predicted by no fold or by several")
        mse = F.mse_loss(left_out, y.double()).item()
        r2 = 1 - mse / y.double().var(unbiased=False).item()
        (folder / "summary.json").write_text(json.dumps({"mse": mse, "r2": r2, "folds": args.folds}))
        logger.info("all folds: mse %.4f r2 %.3f", mse, r2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
