import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class VocabTable:
    """Raw id -> row map. Rank 0 admits new ids, the table is then sent round before each batch is looked up."""

    def __init__(self, raw_space, capacity):
        self.rows = torch.full((raw_space,), -1, dtype=torch.int32)
        self.capacity = capacity
        self.used = 1
        self.last_seen = torch.zeros(capacity, dtype=torch.long)

    def admit(self, raw, step):
        fresh = raw.unique()
        unknown = fresh[self.rows[fresh] < 0]
        self.last_seen[self.rows[fresh[self.rows[fresh] >= 0]].long()] = step
        free = self.capacity - self.used
        if len(unknown) > free:
            known = (self.rows >= 0).nonzero().squeeze(1)
            age = self.last_seen[self.rows[known].long()]
            retire = known[age.argsort()[: len(unknown) - free]]
            slots = self.rows[retire].long()
            self.rows[retire] = -1
            slots = torch.cat([torch.arange(self.used, self.capacity), slots])
            self.used = self.capacity
        else:
            slots = torch.arange(self.used, self.used + len(unknown))
            self.used += len(unknown)
        self.rows[unknown] = slots.int()
        self.last_seen[self.rows[fresh].long()] = step

    def lookup(self, raw):
        return self.rows[raw].clamp(min=0).long()


class DeepCross(nn.Module):
    def __init__(self, capacity, fields=6, dim=24):
        super().__init__()
        self.embed = nn.Embedding(capacity, dim)
        nn.init.normal_(self.embed.weight, std=0.05)
        d = fields * dim
        self.cross = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(d, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.out = nn.Linear(d + 256, 1)

    def forward(self, rows):
        x0 = self.embed(rows).flatten(1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.out(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


class Stream:
    """Click stream whose popular ids drift with time."""

    def __init__(self, rank, raw_space, fields=6):
        shared = torch.Generator().manual_seed(2)
        self.taste = torch.randn(raw_space, generator=shared)
        self.g = torch.Generator().manual_seed(60 + rank)
        self.raw_space, self.fields = raw_space, fields

    def batch(self, n, step):
        base = (torch.rand(n, self.fields, generator=self.g) ** 2 * 2400).long()
        raw = (base + step * 30) % self.raw_space
        p = torch.sigmoid(self.taste[raw].mean(1) * 3)
        return raw, (torch.rand(n, generator=self.g) < p).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=110)
    ap.add_argument("--batch-size", type=int, default=1024)
    ap.add_argument("--raw-space", type=int, default=12000)
    ap.add_argument("--capacity", type=int, default=4000)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(23)
    model = DDP(DeepCross(args.capacity))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    table = VocabTable(args.raw_space, args.capacity)
    stream = Stream(rank, args.raw_space)

    for step in range(args.steps):
        raw, click = stream.batch(args.batch_size, step)
        seen = [torch.empty_like(raw) for _ in range(world)] if rank == 0 else None
        dist.gather(raw, seen, dst=0)
        if rank == 0:
            table.admit(torch.cat(seen).flatten(), step)
        dist.broadcast(table.rows, src=0)
        loss = F.binary_cross_entropy_with_logits(model(table.lookup(raw)), click)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} bce {loss.item():.4f} rows {table.used}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
