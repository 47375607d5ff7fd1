"""Petal counting from radial outlines, trained with a hand-written Shampoo."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from shampoo import DealtShampoo


def outlines(n, seed, points=64):
    g = torch.Generator().manual_seed(seed)
    petals = torch.randint(3, 9, (n,), generator=g)
    phi = torch.linspace(0, 6.2832, points + 1)[:-1]
    depth = 0.2 + 0.3 * torch.rand(n, 1, generator=g)
    r = 1 + depth * torch.cos(petals[:, None] * phi + 6.28 * torch.rand(n, 1, generator=g))
    r = r + 0.15 * torch.randn(n, points, generator=g)
    return TensorDataset(r - 1, petals - 3)


class Counter(nn.Module):
    def __init__(self, points=64, width=64):
        super().__init__()
        self.spec = nn.Linear(points, 2 * width)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, 6)

    def forward(self, r):
        a, b = self.spec(r).chunk(2, 1)
        power = (a * a + b * b + 1e-6).sqrt()
        return self.fc2(torch.relu(self.fc1(power)))


@torch.no_grad()
def score(model, data, rank, world):
    x, y = (t[rank::world] for t in data.tensors)
    s = torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--refresh-every", type=int, default=10)
    ap.add_argument("--ckpt", default=os.path.join("petals", "counter.pt"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(62)
    model = DistributedDataParallel(Counter())
    opt = DealtShampoo(model.parameters(), args.lr, every=args.refresh_every, weight_decay=1e-4)
    train, test = outlines(1536, 1), outlines(384, 2)
    sampler = DistributedSampler(train, seed=63)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    ce = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, dtype=torch.float64)
        for x, y in loader:
            loss = ce(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(total)
        acc = score(model.module, test, rank, world)
        if rank == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f} accuracy {acc:.3f}", flush=True)

    if rank == 0:
        os.makedirs(os.path.dirname(args.ckpt), exist_ok=True)
        torch.save(model.module.state_dict(), args.ckpt)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
