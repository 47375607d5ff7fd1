"""Click model: a sharded table for the sparse side, a data-parallel tower for the rest."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from rowshard import RowShardedEmbedding


class RowAdagrad:
    """Adagrad with one accumulator per row, for the local slice of the table."""

    def __init__(self, weight, lr, eps=1e-8):
        self.weight, self.lr, self.eps = weight, lr, eps
        self.acc = torch.zeros(len(weight))

    @torch.no_grad()
    def step(self):
        g = self.weight.grad
        self.acc += g.square().mean(1)
        self.weight -= self.lr * g / (self.acc.sqrt() + self.eps)[:, None]
        self.weight.grad = None


class Tower(nn.Module):
    def __init__(self, fields, dim, dense):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(fields * dim + dense, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, emb, dense):
        pair = emb.sum(1).square().sum(-1) - emb.square().sum(-1).sum(-1)
        return self.mlp(torch.cat([emb.flatten(1), dense], 1)).squeeze(1) + 0.5 * pair


def clicks(n, fields, per_field, seed):
    base = torch.Generator().manual_seed(15)
    taste = torch.randn(fields * per_field, 4, generator=base) * 0.8
    g = torch.Generator().manual_seed(seed)
    local = (torch.rand(n, fields, generator=g) ** 3 * per_field).long()
    ids = local + torch.arange(fields) * per_field
    dense = torch.randn(n, 3, generator=g)
    score = taste[ids].sum(1).square().sum(-1) - taste[ids].square().sum((1, 2)) + dense[:, 0]
    return ids, dense, (torch.rand(n, generator=g) < torch.sigmoid(score)).float()


@torch.no_grad()
def log_loss(table, tower, data, rank, world, batch):
    ids, dense, y = (t[rank::world] for t in data)
    s = torch.zeros(2, dtype=torch.float64)
    for at in range(0, len(y), batch):
        out = tower(table(ids[at:at + batch]), dense[at:at + batch])
        s[0] += F.binary_cross_entropy_with_logits(out, y[at:at + batch], reduction="sum")
        s[1] += len(out)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--dim", type=int, default=8)
    ap.add_argument("--out", default="ctr")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    fields, per_field = 5, 60
    table = RowShardedEmbedding(fields * per_field, args.dim, seed=16)
    tower = DDP(Tower(fields, args.dim, 3))
    opt_rows = RowAdagrad(table.weight, lr=0.08)
    opt = torch.optim.Adam(tower.parameters(), lr=2e-3)
    ids, dense, y = (t[rank::world] for t in clicks(8192, fields, per_field, 1))
    held = clicks(1024, fields, per_field, 2)
    pick = torch.Generator().manual_seed(70 + rank)

    for step in range(1, args.steps + 1):
        i = torch.randint(0, len(y), (args.batch,), generator=pick)
        loss = F.binary_cross_entropy_with_logits(tower(table(ids[i]), dense[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        opt_rows.step()
        if step % 30 == 0:
            ll = log_loss(table, tower.module, held, rank, world, 128)
            if rank == 0:
                print(f"step {step} held-out log loss {ll:.4f}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    torch.save({"rows": table.weight.detach(), "acc": opt_rows.acc}, f"{args.out}/table.{rank}-of-{world}.pt")
    if rank == 0:
        torch.save(tower.module.state_dict(), f"{args.out}/tower.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
