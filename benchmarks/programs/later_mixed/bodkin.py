"""Sharpness-aware training: the ascent step uses each rank's own gradient."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class SAM:
    def __init__(self, params, base, rho):
        self.params = [p for p in params if p.requires_grad]
        self.base, self.rho = base, rho
        self.moved = []

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        scale = self.rho / (norm + 1e-12)
        self.moved = []
        for p in self.params:
            self.moved.append(p.clone())
            p.add_(p.grad * scale)
            p.grad = None

    @torch.no_grad()
    def back_and_step(self):
        for p, old in zip(self.params, self.moved):
            p.copy_(old)
        self.base.step()
        self.base.zero_grad()


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    r = 1.0 + y.float() + 0.25 * torch.randn(n, generator=g)
    a = torch.rand(n, generator=g) * 6.2832
    return TensorDataset(torch.stack([r * a.cos(), r * a.sin()], 1), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--rho", type=float, default=0.05)
    ap.add_argument("--lr", type=float, default=0.1)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = rings(1024, 1)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    ddp = DDP(nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3)))
    base = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=0.9)
    sam = SAM(ddp.parameters(), base, args.rho)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with ddp.no_sync():
                F.cross_entropy(ddp(x), y).backward()
            sam.climb()
            loss = F.cross_entropy(ddp(x), y)
            loss.backward()
            sam.back_and_step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
