import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, out_splits, in_splits):
        ctx.out_splits, ctx.in_splits = out_splits, in_splits
        out = rows.new_empty(sum(out_splits), rows.size(1))
        dist.all_to_all_single(out, rows.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, grad):
        g = grad.new_empty(sum(ctx.in_splits), grad.size(1))
        dist.all_to_all_single(g, grad.contiguous(), ctx.in_splits, ctx.out_splits)
        return g, None, None


class RowwiseEmbedding(nn.Module):
    """Row id lives on rank id % world. Lookups travel to the owner, vectors travel back."""

    def __init__(self, rows, dim):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        local = len(range(self.rank, rows, self.world))
        self.weight = nn.Parameter(torch.randn(local, dim, generator=torch.Generator().manual_seed(self.rank)) * 0.05)

    def forward(self, ids):
        flat = ids.flatten()
        owner = flat % self.world
        order = owner.argsort(stable=True)
        send_counts = torch.bincount(owner, minlength=self.world)
        recv_counts = torch.empty_like(send_counts)
        dist.all_to_all_single(recv_counts, send_counts)
        s, r = send_counts.tolist(), recv_counts.tolist()
        asked = flat.new_empty(sum(r))
        dist.all_to_all_single(asked, flat[order], r, s)
        rows = self.weight[asked // self.world]
        got = Exchange.apply(rows, s, r)
        out = torch.empty_like(got)
        out = out.index_copy(0, order, got)
        return out.view(*ids.shape, -1)


class Ranker(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * dim + 5, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, emb, dense):
        return self.net(torch.cat([emb.flatten(1), dense], 1)).squeeze(1)


def clicks(gen, n, rows):
    u = torch.rand(n, 3, generator=gen)
    ids = (u ** 3 * rows).long().clamp(max=rows - 1)
    dense = torch.randn(n, 5, generator=gen)
    p = torch.sigmoid((ids % 7 - 3).float().sum(1) * 0.3 + dense[:, 0])
    return ids, dense, torch.bernoulli(p, generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=1001)
    ap.add_argument("--dim", type=int, default=8)
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    table = RowwiseEmbedding(args.rows, args.dim)
    torch.manual_seed(0)
    dense_net = DDP(Ranker(args.dim))
    sparse_opt = torch.optim.Adagrad(table.parameters(), lr=0.05)
    dense_opt = torch.optim.Adam(dense_net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank + 1)
    for step in range(args.steps):
        ids, dense, y = clicks(gen, 64, args.rows)
        loss = nn.functional.binary_cross_entropy_with_logits(dense_net(table(ids), dense), y)
        sparse_opt.zero_grad()
        dense_opt.zero_grad()
        loss.backward()
        table.weight.grad.div_(world)
        sparse_opt.step()
        dense_opt.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.3f} local rows {len(table.weight)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
