import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau

from data import loaders


class Mean:
    def __init__(self):
        self.total, self.n = 0.0, 0

    def add(self, value, n):
        self.total += float(value) * n
        self.n += n

    @property
    def avg(self):
        return self.total / max(1, self.n)


def reduce_mean(value):
    t = torch.tensor(float(value))
    dist.all_reduce(t)
    return (t / dist.get_world_size()).item()


def run_epoch(model, loader, criterion, opt=None):
    model.train(opt is not None)
    meter = Mean()
    with torch.set_grad_enabled(opt is not None):
        for x, y in loader:
            loss = criterion(model(x), y)
            if opt is not None:
                opt.zero_grad()
                loss.backward()
                opt.step()
            meter.add(loss.item(), len(x))
    return meter.avg


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=14)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--patience", type=int, default=0)
    ap.add_argument("--factor", type=float, default=0.4)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train_loader, val_loader = loaders(args.batch_size)
    model = DDP(nn.Sequential(nn.Linear(10, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)))
    criterion = nn.MSELoss()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = ReduceLROnPlateau(opt, mode="min", factor=args.factor, patience=args.patience, min_lr=1e-5)

    history = []
    for epoch in range(args.epochs):
        started = time.time()
        train_loader.sampler.set_epoch(epoch)
        train_loss = run_epoch(model, train_loader, criterion, opt)
        val_loss = run_epoch(model, val_loader, criterion)
        avg_train, avg_val = reduce_mean(train_loss), reduce_mean(val_loss)
        scheduler.step(avg_val)
        history.append({"epoch": epoch, "train": avg_train, "val": avg_val})
        if rank == 0:
            lr = opt.param_groups[0]["lr"]
            print(f"[{epoch:02d}] train {avg_train:.4f} val {avg_val:.4f} lr {lr:.2e} {time.time() - started:.1f}s", flush=True)
    if rank == 0:
        with open("history.json", "w") as f:
            json.dump(history, f, indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
