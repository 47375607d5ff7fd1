import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class EarlyStopping:
    def __init__(self, patience, delta=0.0):
        self.patience, self.delta = patience, delta
        self.best, self.bad = float("inf"), 0

    def __call__(self, value):
        if value < self.best - self.delta:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def table(n, seed, noise=1.0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 14, generator=g)
    y = (x[:, :4].sum(1) + noise * torch.randn(n, generator=g) > 0).float()
    return TensorDataset(x, y)


def train(model, loader, opt):
    model.train()
    for x, y in loader:
        opt.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).backward()
        opt.step()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    losses = [nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y) for x, y in loader]
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-epochs", type=int, default=60)
    ap.add_argument("--patience", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), 4e-3)
    train_set, val_set = table(256, 0), table(96, 1)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, 16, sampler=sampler)
    val_loader = DataLoader(val_set, 16, sampler=DistributedSampler(val_set, shuffle=False))
    stopper = EarlyStopping(args.patience, delta=1e-3)
    for epoch in range(args.max_epochs):
        sampler.set_epoch(epoch)
        train(model, loader, opt)
        val = validate(model, val_loader)
        print(f"[rank {rank}] epoch {epoch} val {val:.4f}", flush=True)
        if stopper(val):
            print(f"[rank {rank}] no progress for {args.patience} epochs, stopping at {epoch}", flush=True)
            break
    if rank == 0:
        torch.save(model.module.state_dict(), "churn.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
