"""Restoration of occluded canopy patches (DDP, two loader workers per process)."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from dataset import build_loader


class UNetLite(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        block = lambda i, o, s: nn.Sequential(nn.Conv2d(i, o, 3, s, 1), nn.GroupNorm(4, o), nn.SiLU())
        self.d0, self.d1, self.d2 = block(1, width, 1), block(width, width * 2, 2), block(width * 2, width * 4, 2)
        self.u1, self.u0 = block(width * 6, width * 2, 1), block(width * 3, width, 1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.d0(x)
        b = self.d1(a)
        c = self.d2(b)
        b = self.u1(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        a = self.u0(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))
        return self.out(a)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--items", type=int, default=1024)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=2024)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = DDP(UNetLite())
    torch.manual_seed(args.seed + rank)
    loader, sampler = build_loader(args.items, args.batch_size, args.workers, args.seed)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for noisy, clean in loader:
            loss = F.mse_loss(model(noisy), clean)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        mean = torch.tensor(total / len(loader))
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / world:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
