import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Matches(Dataset):
    def __init__(self, n=768, dim=24):
        g = torch.Generator().manual_seed(33)
        self.left = torch.randn(n, dim, generator=g)
        self.right = self.left @ torch.randn(dim, dim, generator=g) / dim**0.5 + 0.1 * torch.randn(n, dim, generator=g)

    def __len__(self):
        return len(self.left)

    def __getitem__(self, i):
        return self.left[i], self.right[i]


class TwoTower(nn.Module):
    def __init__(self, dim=24, out=16):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, out))
        self.right = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, out))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1), self.log_scale.exp()


class GatherRows(torch.autograd.Function):
    """Rows of all ranks; backward sums every rank's gradient for the rows that are ours."""

    @staticmethod
    def forward(ctx, rows):
        ctx.count = len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        start = dist.get_rank() * ctx.count
        return grad[start : start + ctx.count]


def info_nce(a, b, scale, rank):
    every_a = GatherRows.apply(a.contiguous())
    every_b = GatherRows.apply(b.contiguous())
    target = torch.arange(len(a)) + rank * len(a)
    return 0.5 * (F.cross_entropy(scale * a @ every_b.T, target) + F.cross_entropy(scale * b @ every_a.T, target))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=32)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(13)
    model = DDP(TwoTower())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = Matches()
    sampler = DistributedSampler(data, shuffle=True, seed=8, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for a, b in loader:
            za, zb, scale = model(a, b)
            loss = info_nce(za, zb, scale, rank)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
