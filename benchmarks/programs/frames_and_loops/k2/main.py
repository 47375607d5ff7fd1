import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from embedding import RowShardedEmbedding


def flags():
    p = argparse.ArgumentParser()
    p.add_argument("--items", type=int, default=900)
    p.add_argument("--fields", type=int, default=5)
    p.add_argument("--dim", type=int, default=12)
    p.add_argument("--rows", type=int, default=4320)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--dense-lr", type=float, default=5e-3)
    p.add_argument("--table-lr", type=float, default=0.02)
    p.add_argument("--seed", type=int, default=37)
    p.add_argument("--out", default="out_k2")
    return p.parse_args()


class Tower(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.cross = nn.Parameter(torch.full((a.fields, a.fields), 0.05))
        self.deep = nn.Sequential(nn.Linear(a.fields * a.dim, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, e):
        pair = torch.einsum("bid,ij,bjd->b", e, self.cross, e)
        return self.deep(e.flatten(1)).squeeze(1) + pair


def clicks(a):
    g = torch.Generator().manual_seed(a.seed)
    taste = torch.randn(a.items, generator=g)
    pop = torch.rand(a.items, generator=g).pow(4) + 0.01
    ids = torch.multinomial(pop, a.rows * a.fields, replacement=True, generator=g).view(a.rows, a.fields)
    p = torch.sigmoid(1.5 * taste[ids].sum(1))
    return ids, torch.bernoulli(p, generator=g)


def gather_table(table, items, dim):
    rank, world = dist.get_rank(), dist.get_world_size()
    full = torch.zeros(items, dim)
    full[rank::world] = table.local.weight.detach()
    dist.reduce(full, dst=0)
    return full


def main():
    a = flags()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    ids, y = clicks(a)
    held = a.rows // 6
    train_n = a.rows - held
    table = RowShardedEmbedding(a.items, a.dim, a.seed)
    tower = DDP(Tower(a))
    dense = torch.optim.Adam(tower.parameters(), lr=a.dense_lr)
    # local rows receive the gradients of all processes as a sum
    sparse = torch.optim.SparseAdam(list(table.parameters()), lr=a.table_lr)
    for epoch in range(a.epochs):
        g = torch.Generator().manual_seed(a.seed + 1 + epoch)
        order = torch.randperm(train_n, generator=g)
        order = order[: train_n // (world * a.batch) * world * a.batch][rank::world]
        sums = torch.zeros(2)
        for idx in order.split(a.batch):
            logit = tower(table(ids[idx]))
            loss = F.binary_cross_entropy_with_logits(logit, y[idx])
            dense.zero_grad()
            sparse.zero_grad()
            loss.backward()
            table.local.weight.grad = table.local.weight.grad.coalesce() / world
            dense.step()
            sparse.step()
            sums += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(sums)
        with torch.no_grad():
            idx = torch.arange(train_n + rank, a.rows, world)
            out = tower.module(table(ids[idx]))
            stat = torch.tensor([F.binary_cross_entropy_with_logits(out, y[idx], reduction="sum").item(),
                                 (out > 0).float().eq(y[idx]).sum().item(), float(len(idx))])
        dist.all_reduce(stat)
        if rank == 0:
            print(f"epoch {epoch} loss {sums[0] / sums[1]:.4f} held {stat[0] / stat[2]:.4f} "
                  f"acc {stat[1] / stat[2]:.3f} rows here {table.local.num_embeddings}", flush=True)
    full = gather_table(table, a.items, a.dim)
    if rank == 0:
        os.makedirs(a.out, exist_ok=True)
        torch.save({"table": full, "tower": tower.module.state_dict()}, os.path.join(a.out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
