import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from model import Conversion
from sessions import Sessions, collate


def setup():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


class Meter:
    def __init__(self):
        self.v = torch.zeros(2)

    def add(self, value, n):
        self.v += torch.tensor([value * n, float(n)])

    def reduced(self):
        dist.all_reduce(self.v)
        return (self.v[0] / self.v[1]).item()


def train_one_epoch(model, loader, optimizer, criterion, clip):
    model.train()
    meter = Meter()
    for ids, ignore, y in loader:
        loss = criterion(model(ids, ignore), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        meter.add(loss.item(), len(y))
    return meter.reduced()


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    meter = Meter()
    for ids, ignore, y in loader:
        hit = ((model(ids, ignore) > 0).float() == y).float().mean().item()
        meter.add(hit, len(y))
    return meter.reduced()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--sessions", type=int, default=1440)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "conversion.pt"))
    args = ap.parse_args()

    rank, world = setup()
    torch.manual_seed(args.seed)
    train, val = Sessions(args.sessions, 3), Sessions(96 * world, 4)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, args.batch_size, sampler=sampler, collate_fn=collate)
    val_loader = DataLoader(val, 32, sampler=DistributedSampler(val, shuffle=False), collate_fn=collate)
    model = DDP(Conversion())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, loader, optimizer, criterion, args.clip)
        acc = accuracy(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs} loss {loss:.4f} val acc {acc:.3f}", flush=True)
            torch.save(model.module.state_dict(), args.out)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
