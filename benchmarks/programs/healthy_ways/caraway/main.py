"""Self-distillation without labels: student in DDP, slow teacher on every rank, shared centre."""
import argparse
import copy
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def sequences(n, seed, classes=6, length=32):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(length).float()
    freq = 0.2 + 0.25 * y.float()
    phase = torch.rand(n, 1, generator=g) * 2 * math.pi
    x = torch.sin(freq[:, None] * t + phase) + 0.2 * torch.randn(n, length, generator=g)
    return TensorDataset(x, y)


class Crops:
    def __init__(self, gen, big=28, small=16, n_small=2):
        self.gen, self.big, self.small, self.n_small = gen, big, small, n_small

    def _crop(self, x, size):
        start = torch.randint(0, x.shape[1] - size + 1, (len(x), 1), generator=self.gen)
        x = x.gather(1, start + torch.arange(size))
        gain = 0.7 + 0.6 * torch.rand(len(x), 1, generator=self.gen)
        return x * gain + 0.1 * torch.randn(x.shape, generator=self.gen)

    def __call__(self, x):
        return [self._crop(x, self.big) for _ in range(2)], [self._crop(x, self.small) for _ in range(self.n_small)]


class Backbone(nn.Module):
    def __init__(self, dim=48, out=24):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 24, 5, padding=2), nn.GELU(), nn.Conv1d(24, dim, 5, stride=2, padding=2),
                                  nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(dim, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, out))

    def features(self, x):
        return self.norm(self.conv(x[:, None]))

    def forward(self, groups):
        return torch.cat([self.head(self.features(g)) for g in groups])


class Student(nn.Module):
    def __init__(self, net, out=24):
        super().__init__()
        self.net = net
        self.guess = nn.Sequential(nn.Linear(out, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, out))

    def forward(self, groups):
        return self.guess(self.net(groups))


class CentredLoss(nn.Module):
    """Cosine distance between the student's guess and the teacher's centred output of another view."""

    def __init__(self, out=24, momentum=0.9):
        super().__init__()
        self.m, self.started = momentum, False
        self.register_buffer("centre", torch.zeros(1, out))

    def forward(self, student, teacher, views):
        self.recentre(teacher)
        s = F.normalize(student, dim=1).chunk(views)
        t = F.normalize(teacher - self.centre, dim=1).chunk(2)
        terms = [2 - 2 * (q * p).sum(1).mean() for i, q in enumerate(t) for j, p in enumerate(s) if i != j]
        return torch.stack(terms).mean(), torch.cat(t).std(0).mean()

    @torch.no_grad()
    def recentre(self, teacher):
        s = teacher.sum(0, keepdim=True)
        dist.all_reduce(s)
        mean = s / (len(teacher) * dist.get_world_size())
        if not self.started:
            self.centre.copy_(mean)
            self.started = True
        self.centre.mul_(self.m).add_(mean, alpha=1 - self.m)


@torch.no_grad()
def follow(teacher, student, m):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(m).add_(s.detach(), alpha=1 - m)


@torch.no_grad()
def neighbours(teacher, train, test, k=5):
    teacher.eval()
    ft = F.normalize(teacher.features(train.tensors[0]), dim=1)
    fv = F.normalize(teacher.features(test.tensors[0]), dim=1)
    near = (fv @ ft.t()).topk(k, dim=1).indices
    return (train.tensors[1][near].mode(1).values == test.tensors[1]).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--momentum", type=float, default=0.98)
    ap.add_argument("--seed", type=int, default=12)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = Backbone()
    teacher = copy.deepcopy(net).requires_grad_(False).eval()
    student = DDP(Student(net))
    criterion = CentredLoss()
    crops = Crops(torch.Generator().manual_seed(args.seed + 3000 + rank))
    train, test = sequences(1024, 1), sequences(300, 2)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(student.parameters(), lr=args.lr, weight_decay=0.01)
    total, step = args.epochs * len(loader), 0

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        tally = torch.zeros(3)
        for x, _ in loader:
            opt.param_groups[0]["lr"] = args.lr * min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * step / total))
            m = 1 - (1 - args.momentum) * 0.5 * (1 + math.cos(math.pi * step / total))
            big, small = crops(x)
            views = len(big) + len(small)
            with torch.no_grad():
                t_out = teacher(big)
            loss, spread = criterion(student(big + small), t_out, views)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 2.0)
            opt.step()
            follow(teacher, net, m)
            tally += torch.tensor([loss.item(), spread.item(), 1.0])
            step += 1
        dist.all_reduce(tally)
        if rank == 0:
            print(f"epoch {epoch} loss {(tally[0] / tally[2]).item():.4f} spread {(tally[1] / tally[2]).item():.3f} "
                  f"neighbours {neighbours(teacher, train, test):.3f} |centre| {criterion.centre.norm().item():.3f}", flush=True)
        dist.barrier()
    if rank == 0:
        os.makedirs("runs/caraway", exist_ok=True)
        torch.save({"student": student.module.state_dict(), "teacher": teacher.state_dict(), "centre": criterion.centre},
                   "runs/caraway/last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
