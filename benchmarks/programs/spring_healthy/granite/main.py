"""Lock-free SGD (Hogwild) of a factorisation model on one host."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from shared import SharedArena, adopt


class Factors(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.u, self.i = nn.Embedding(users, dim, sparse=True), nn.Embedding(items, dim, sparse=True)
        self.bu, self.bi = nn.Embedding(users, 1, sparse=True), nn.Embedding(items, 1, sparse=True)
        for e in (self.u, self.i):
            nn.init.normal_(e.weight, std=0.1)
        for e in (self.bu, self.bi):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(1) + self.bu(u).squeeze(1) + self.bi(i).squeeze(1)


def ratings(users, items, n):
    g = torch.Generator().manual_seed(0)
    pu, pi = torch.randn(users, 6, generator=g) / 6 ** 0.5, torch.randn(items, 6, generator=g)
    u = torch.randint(0, users, (n,), generator=g)
    i = (torch.rand(n, generator=g).pow(2) * items).long()
    return u, i, (pu[u] * pi[i]).sum(1) + 0.1 * torch.randn(n, generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=3000)
    ap.add_argument("--items", type=int, default=1200)
    ap.add_argument("--ratings", type=int, default=120_000)
    ap.add_argument("--passes", type=int, default=6)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=6.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s worker {rank} %(message)s")
    model = Factors(args.users, args.items, 12)
    arena = SharedArena(sum(p.numel() for p in model.parameters()), "factors")
    adopt(model, arena)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    u, i, r = ratings(args.users, args.items, args.ratings)
    cut = args.ratings * 9 // 10
    mine = torch.arange(cut)[rank::world]
    gen = torch.Generator().manual_seed(40 + rank)

    # no meeting point in here: each worker goes at its own pace on the same memory
    for p in range(args.passes):
        for g in opt.param_groups:
            g["lr"] = args.lr * 0.8 ** p
        order = mine[torch.randperm(len(mine), generator=gen)]
        total = 0.0
        for idx in order.split(args.batch):
            loss = F.mse_loss(model(u[idx], i[idx]), r[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(idx)
        logging.info("pass %d mse %.4f", p, total / len(mine))

    dist.barrier()
    held = torch.arange(cut, args.ratings)[rank::world]
    with torch.no_grad():
        sq = (model(u[held], i[held]) - r[held]).square().sum()
    stat = torch.stack([sq, torch.tensor(float(len(held)))])
    dist.all_reduce(stat)
    digest = torch.stack([arena.data.double().sum(), arena.data.double().abs().sum()])
    both = [torch.empty_like(digest) for _ in range(world)]
    dist.all_gather(both, digest)
    if rank == 0:
        logging.info("held-out mse %.4f (variance %.4f) digests %s", stat[0] / stat[1], r[cut:].var(), [b.tolist() for b in both])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
