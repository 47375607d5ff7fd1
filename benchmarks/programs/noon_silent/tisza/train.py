"""Self-distillation with a slow teacher on partly labelled tiles; consistency weight ramps up."""
import argparse
import copy
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Backbone(nn.Module):
    def __init__(self, width=16, out=10):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.GELU(),
            nn.Conv2d(width, width * 2, 3, 2, 1), nn.GroupNorm(4, width * 2), nn.GELU(),
        )
        self.proj = nn.Sequential(nn.Linear(width * 2, 128), nn.GELU(), nn.Linear(128, 64))
        self.last = nn.Linear(64, out)

    def forward(self, x):
        return self.last(self.proj(self.conv(x).mean((2, 3))))


class TwoViews(Dataset):
    def __init__(self, n, seed=0):
        g = torch.Generator().manual_seed(seed)
        base = torch.rand(10, 3, 4, 4, generator=g)
        pick = torch.randint(0, 10, (n,), generator=g)
        known = torch.rand(n, generator=g) < 0.2
        self.y = torch.where(known, pick, torch.full_like(pick, -100))
        self.x = F.interpolate(base[pick], scale_factor=6, mode="bilinear") + 0.1 * torch.randn(n, 3, 24, 24, generator=g)

    def __len__(self):
        return len(self.x)

    def view(self, x):
        if torch.rand(()) < 0.5:
            x = x.flip(2)
        x = x * (0.7 + 0.6 * torch.rand(3, 1, 1))
        dy, dx = torch.randint(0, 5, (2,)).tolist()
        return x[:, dy:dy + 20, dx:dx + 20]

    def __getitem__(self, i):
        return self.view(self.x[i]), self.view(self.x[i]), self.y[i]


def ramp(step, length):
    return math.exp(-5 * (1 - min(1.0, step / length)) ** 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--momentum", type=float, default=0.97)
    ap.add_argument("--consistency", type=float, default=4.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    student = Backbone()
    teacher = copy.deepcopy(student).requires_grad_(False)
    student = DDP(student)
    ds = TwoViews(1920)
    sampler = DistributedSampler(ds, shuffle=True, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(student.parameters(), lr=args.lr, weight_decay=0.02)
    torch.manual_seed(70 + rank)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        stat = torch.zeros(3)
        for a, b, y in loader:
            with torch.no_grad():
                target = teacher(b).softmax(-1)
            logits = student(a)
            known = (y >= 0).sum()
            total_known = known.clone()
            dist.all_reduce(total_known)
            supervised = F.cross_entropy(logits, y, ignore_index=-100, reduction="sum") * world / total_known.clamp(min=1)
            consistency = F.mse_loss(logits.softmax(-1), target)
            loss = supervised + args.consistency * ramp(step, 60) * consistency
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 3.0)
            opt.step()
            with torch.no_grad():
                for p, q in zip(teacher.parameters(), student.module.parameters()):
                    p.lerp_(q, 1 - args.momentum)
            stat += torch.stack([supervised.detach(), consistency.detach(), torch.ones(())])
            step += 1
        dist.all_reduce(stat)
        if rank == 0:
            print(f"epoch {epoch} supervised {stat[0] / stat[2]:.4f} consistency {stat[1] / stat[2]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
