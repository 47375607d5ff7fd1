"""Row-sharded embedding: rank r owns the rows [r * rows_per_rank, (r + 1) * rows_per_rank)."""
import torch
import torch.distributed as dist
from torch import nn


class ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send_counts, recv_counts):
        ctx.counts = send_counts, recv_counts
        out = rows.new_empty(sum(recv_counts), rows.size(1))
        dist.all_to_all_single(out, rows.contiguous(), recv_counts, send_counts)
        return out

    @staticmethod
    def backward(ctx, grad):
        send_counts, recv_counts = ctx.counts
        back = grad.new_empty(sum(send_counts), grad.size(1))
        dist.all_to_all_single(back, grad.contiguous(), send_counts, recv_counts)
        return back, None, None


class ShardedEmbedding(nn.Module):
    def __init__(self, num_rows, dim):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rows_per_rank = -(-num_rows // self.world)
        gen = torch.Generator().manual_seed(1234 + self.rank)
        self.weight = nn.Parameter(torch.randn(self.rows_per_rank, dim, generator=gen) * 0.1)

    def forward(self, ids):
        flat = ids.flatten()
        owner = flat // self.rows_per_rank
        if bool((owner == self.rank).all()):
            return self.weight[flat - self.rank * self.rows_per_rank].view(*ids.shape, -1)

        order = owner.argsort(stable=True)
        ask_counts = torch.bincount(owner, minlength=self.world)
        give_counts = torch.empty_like(ask_counts)
        dist.all_to_all_single(give_counts, ask_counts)
        ask, give = ask_counts.tolist(), give_counts.tolist()
        wanted = flat.new_empty(sum(give))
        dist.all_to_all_single(wanted, flat[order], give, ask)
        rows = self.weight[wanted - self.rank * self.rows_per_rank]
        got = ExchangeRows.apply(rows, give, ask)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel())
        return got[back].view(*ids.shape, -1)
