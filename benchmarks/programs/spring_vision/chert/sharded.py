"""Table-wise sharded embeddings: every table lives on one rank, lookups travel by all-to-all."""
import torch
import torch.distributed as dist
import torch.nn as nn


class PooledAllToAll(torch.autograd.Function):
    """[world * B, own, D] of the owner  ->  [B, all tables, D] of the consumer."""

    @staticmethod
    def forward(ctx, emb, counts, batch):
        world, rank = dist.get_world_size(), dist.get_rank()
        dim = emb.size(2)
        send = emb.reshape(world, batch * counts[rank] * dim)
        out = emb.new_empty(batch * sum(counts) * dim)
        dist.all_to_all_single(out, send.reshape(-1).contiguous(),
                               output_split_sizes=[batch * c * dim for c in counts],
                               input_split_sizes=[batch * counts[rank] * dim] * world)
        ctx.counts, ctx.batch, ctx.dim = counts, batch, dim
        parts = out.split([batch * c * dim for c in counts])
        return torch.cat([p.view(batch, c, dim) for p, c in zip(parts, counts)], 1)

    @staticmethod
    def backward(ctx, grad):
        world, rank = dist.get_world_size(), dist.get_rank()
        counts, batch, dim = ctx.counts, ctx.batch, ctx.dim
        send = torch.cat([g.reshape(-1) for g in grad.split(counts, 1)])
        out = grad.new_empty(world * batch * counts[rank] * dim)
        dist.all_to_all_single(out, send.contiguous(),
                               output_split_sizes=[batch * counts[rank] * dim] * world,
                               input_split_sizes=[batch * c * dim for c in counts])
        return out.view(world * batch, counts[rank], dim) / world, None, None


class ShardedEmbeddings(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.owner = [i % self.world for i in range(len(sizes))]
        self.own = [i for i, o in enumerate(self.owner) if o == self.rank]
        self.counts = [self.owner.count(r) for r in range(self.world)]
        self.order = sorted(range(len(sizes)), key=lambda i: (self.owner[i], i))
        self.tables = nn.ModuleDict()
        for i, n in enumerate(sizes):
            g = torch.Generator().manual_seed(4000 + i)
            w = torch.randn(n, dim, generator=g) * 0.05
            if i in self.own:
                self.tables[str(i)] = nn.Embedding(n, dim, _weight=w, sparse=True)

    def forward(self, ids):
        batch = ids.size(0)
        everyone = [torch.empty_like(ids) for _ in range(self.world)]
        dist.all_gather(everyone, ids.contiguous())
        ids = torch.cat(everyone)
        emb = torch.stack([self.tables[str(i)](ids[:, i]) for i in self.own], 1)
        out = PooledAllToAll.apply(emb, self.counts, batch)
        return out[:, torch.argsort(torch.tensor(self.order))]
