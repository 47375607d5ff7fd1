import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from distill import LogitCache, kd_loss


class Flames(Dataset):
    """Flicker traces of seven fuels. Returns the row number too."""

    def __init__(self, n, seed, steps=40):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 7, (n,), generator=g)
        t = torch.arange(steps) / steps
        f = (2 + self.y).float()[:, None] + 0.4 * torch.randn(n, 1, generator=g)
        p = torch.rand(n, 1, generator=g) * 6.28
        self.x = torch.sin(6.28 * f * t + p) + 0.8 * torch.randn(n, steps, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return i, self.x[i], self.y[i]


def net(width):
    return nn.Sequential(nn.Unflatten(1, (1, 40)), nn.Conv1d(1, width, 9, padding=4), nn.ReLU(),
                         nn.Conv1d(width, width, 9, padding=4), nn.ReLU(), nn.AdaptiveMaxPool1d(2),
                         nn.Flatten(), nn.Linear(2 * width, 7))


def fit(model, data, epochs, batch, lr, seed, loss_of):
    wrapped = DDP(model)
    sampler = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam(wrapped.parameters(), lr=lr)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        meter = torch.zeros(2, dtype=torch.float64)
        for index, x, y in loader:
            loss = loss_of(wrapped, index, x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            meter += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(meter)
        yield epoch, (meter[0] / meter[1]).item()


@torch.no_grad()
def accuracy(model, data, rank, world):
    p = model(data.x[rank::world]).argmax(1)
    s = torch.tensor([(p == data.y[rank::world]).sum().item(), len(p)], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--teacher-epochs", type=int, default=5)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--cache", type=int, default=700, help="rows kept per process")
    ap.add_argument("--out", default="distilled")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(81)
    train, test = Flames(1024, 1), Flames(512, 2)
    ce = nn.CrossEntropyLoss()

    teacher = net(24)
    for epoch, loss in fit(teacher, train, args.teacher_epochs, args.batch, 3e-3, 5,
                           lambda m, i, x, y: ce(m(x), y)):
        if rank == 0:
            print(f"teacher {epoch} loss {loss:.4f}", flush=True)
    teacher.eval().requires_grad_(False)
    t_acc = accuracy(teacher, test, rank, world)

    cache = LogitCache(teacher, args.cache)
    student = net(6)
    for epoch, loss in fit(student, train, args.epochs, args.batch, 4e-3, 6,
                           lambda m, i, x, y: kd_loss(m(x), cache(i, x), y)):
        if rank == 0:
            print(f"student {epoch} loss {loss:.4f} cache {len(cache.store)} rows, "
                  f"hits {cache.hits / cache.asks:.2f}", flush=True)
    s_acc = accuracy(student, test, rank, world)
    if rank == 0:
        print(f"teacher {t_acc:.3f} student {s_acc:.3f}")
        os.makedirs(args.out, exist_ok=True)
        torch.save({"teacher": teacher.state_dict(), "student": student.state_dict()},
                   os.path.join(args.out, "pair.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
