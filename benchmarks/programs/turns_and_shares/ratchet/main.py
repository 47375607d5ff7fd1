"""Contour regressor with averaged weights; only the first process looks at the held-out set."""
import argparse
import copy
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def contours(count, seed):
    g = torch.Generator().manual_seed(seed)
    coef = torch.randn(count, 4, generator=g)
    t = torch.linspace(0, 6.28, 28)
    basis = torch.stack([t.sin(), t.cos(), (2 * t).sin(), (2 * t).cos()])
    x = coef @ basis + 0.5 * torch.randn(count, 28, generator=g)
    return TensorDataset(x, coef.square().sum(1).sqrt())


class Averaged:
    """Exponential average of the weights, kept alike on every process."""

    def __init__(self, net, decay):
        self.decay = decay
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.turn = 0

    @torch.no_grad()
    def follow(self, net):
        self.turn += 1
        decay = min(self.decay, (1 + self.turn) / (10 + self.turn))
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            mine.lerp_(theirs, 1 - decay)


class Watch:
    def __init__(self, patience):
        self.patience = patience
        self.best, self.since = float("inf"), 0

    def tell(self, score):
        if score < self.best * 0.995:
            self.best, self.since = score, 0
            return True
        self.since += 1
        return False

    @property
    def tired(self):
        return self.since >= self.patience


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--max-epochs", type=int, default=14)
    ap.add_argument("--patience", type=int, default=2)
    ap.add_argument("--decay", type=float, default=0.98)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=6e-3)
    ap.add_argument("--seed", type=int, default=52)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "contours"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first = rank == 0
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(28, 64), nn.ReLU(), nn.Dropout(args.dropout),
                        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    ddp = DistributedDataParallel(net)
    averaged = Averaged(net, args.decay)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    torch.manual_seed(args.seed + 1 + rank)

    train = contours(1024, 1)
    sampler = DistributedSampler(train, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    held = contours(300, 2).tensors if first else None
    watch = Watch(args.patience) if first else None
    history = []

    for epoch in range(args.max_epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(ddp(x).squeeze(-1), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            averaged.follow(net)

        verdict = torch.zeros(2)
        if first:
            averaged.net.eval()
            with torch.no_grad():
                score = F.mse_loss(averaged.net(held[0]).squeeze(-1), held[1]).item()
            better = watch.tell(score)
            history.append(score)
            print(f"epoch {epoch} held-out {score:.4f}{' *' if better else ''}", flush=True)
            if better:
                os.makedirs(args.out, exist_ok=True)
                torch.save(averaged.net.state_dict(), os.path.join(args.out, "contours.pt"))
            verdict[0] = float(watch.tired)
            verdict[1] = float(not better)
        dist.broadcast(verdict, src=0)
        if verdict[0]:
            break
        if verdict[1]:
            for group in opt.param_groups:
                group["lr"] *= 0.5
    dist.barrier()
    if first:
        with open(os.path.join(args.out, "history.json"), "w") as f:
            json.dump(history, f)
        print(f"stopped after {len(history)} epochs, best {watch.best:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
