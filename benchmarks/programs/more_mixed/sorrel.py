"""Curriculum learning on digit sums: the pool grows from short to long sequences."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Sums(Dataset):
    def __init__(self, n=512):
        g = torch.Generator().manual_seed(77)
        lens = torch.randint(2, 12, (n,), generator=g)
        self.items = []
        for k in lens.tolist():
            d = torch.randint(0, 10, (k,), generator=g)
            self.items.append((F.pad(d, (0, 12 - k), value=10), d.sum() % 5, k))
        self.items.sort(key=lambda t: t[2])

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i][:2]


class CompetenceSampler(Sampler):
    """Walks the easiest fraction of the pool in order, strided over ranks."""

    def __init__(self, n, rank, world, start=0.25):
        self.n, self.rank, self.world = n, rank, world
        self.fraction = start

    def grow(self, by):
        self.fraction = min(1.0, self.fraction + by)

    def __len__(self):
        usable = int(self.n * self.fraction)
        return usable // self.world

    def __iter__(self):
        usable = len(self) * self.world
        return iter(range(self.rank, usable, self.world))


class SumNet(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(11, d, padding_idx=10)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, 5)

    def forward(self, ids):
        return self.out(self.gru(self.emb(ids))[0].mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--grow", type=float, default=0.15)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = Sums()
    sampler = CompetenceSampler(len(data), rank, world)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    model = DDP(SumNet())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(args.epochs):
        losses = []
        for ids, y in loader:
            loss = F.cross_entropy(model(ids), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch} pool {sampler.fraction:.2f} steps {len(losses)} loss {sum(losses) / len(losses):.4f}", flush=True)
        sampler.grow(args.grow)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
