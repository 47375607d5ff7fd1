import torch
import torch.distributed as dist
import torch.nn as nn


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv))
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.send))
        dist.all_to_all_single(out, g.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class ShardedTables(nn.Module):
    """Embedding tables placed whole on single ranks. Pooled lookups are exchanged."""

    def __init__(self, rows, dim, seed):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rows, self.dim = rows, dim
        order = sorted(range(len(rows)), key=lambda t: -rows[t])
        load, self.place = [0] * self.world, {}
        for t in order:
            r = load.index(min(load))
            self.place[t] = r
            load[r] += rows[t]
        self.by_rank = [[t for t in range(len(rows)) if self.place[t] == r] for r in range(self.world)]
        self.tables = nn.ModuleDict()
        for t in self.by_rank[self.rank]:
            bag = nn.EmbeddingBag(rows[t], dim, mode="mean", sparse=True)
            g = torch.Generator().manual_seed(seed + t)
            with torch.no_grad():
                bag.weight.copy_(torch.randn(rows[t], dim, generator=g) / dim ** 0.5)
            # every rank's loss is a mean over its own rows, the exchange adds them up
            bag.weight.register_hook(lambda grad: grad / self.world)
            self.tables[str(t)] = bag

    def forward(self, ids):
        """ids: [local_batch, tables, hot] -> [local_batch, tables, dim]"""
        b, n, hot = ids.shape
        mine = len(self.by_rank[self.rank])
        out_ids = torch.cat([ids[:, ts].permute(1, 0, 2).reshape(-1) for ts in self.by_rank])
        send = [len(ts) * b * hot for ts in self.by_rank]
        got = ids.new_empty(self.world * mine * b * hot)
        dist.all_to_all_single(got, out_ids, [mine * b * hot] * self.world, send)
        got = got.view(self.world, mine, b, hot)
        pooled = []
        for k, t in enumerate(self.by_rank[self.rank]):
            pooled.append(self.tables[str(t)](got[:, k].reshape(-1, hot)).view(self.world, b, self.dim))
        flat = torch.stack(pooled, 1).reshape(-1)
        back = _Exchange.apply(flat, [mine * b * self.dim] * self.world, [len(ts) * b * self.dim for ts in self.by_rank])
        cols = [None] * n
        for ts, part in zip(self.by_rank, back.split([len(ts) * b * self.dim for ts in self.by_rank])):
            for t, col in zip(ts, part.view(len(ts), b, self.dim)):
                cols[t] = col
        return torch.stack(cols, 1)
