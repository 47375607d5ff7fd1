import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = (out_splits, in_splits)
        y = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), out_splits, in_splits)
        return y

    @staticmethod
    def backward(ctx, g):
        out_splits, in_splits = ctx.splits
        dx = g.new_empty(sum(in_splits), g.shape[1])
        dist.all_to_all_single(dx, g.contiguous(), in_splits, out_splits)
        return dx, None, None


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class ExpertParallelFFN(nn.Module):
    """Dropless top-1 layer: experts live on one rank each, tokens travel."""

    def __init__(self, dim, hidden, n_experts, seed):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.n_experts, self.per = n_experts, n_experts // self.world
        self.gate = nn.Linear(dim, n_experts, bias=False)
        experts = []
        for e in range(self.rank * self.per, (self.rank + 1) * self.per):
            with torch.random.fork_rng():
                torch.manual_seed(seed + e)
                experts.append(Expert(dim, hidden))
        self.experts = nn.ModuleList(experts)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.gate(x).softmax(-1)
        top, idx = probs.max(-1)
        order = idx.argsort(stable=True)
        counts = torch.bincount(idx, minlength=self.n_experts)
        table = torch.empty(self.world, self.n_experts, dtype=torch.long)
        dist.all_gather_into_tensor(table.view(-1), counts)
        frac = table.sum(0) / table.sum()
        aux = self.n_experts * (frac * probs.mean(0)).sum()

        mine = table[:, self.rank * self.per : (self.rank + 1) * self.per]
        in_splits = counts.view(self.world, self.per).sum(1).tolist()
        out_splits = mine.sum(1).tolist()
        recv = _AllToAll.apply(x[order], out_splits, in_splits)
        chunks = recv.split(mine.flatten().tolist())
        outs = [None] * len(chunks)
        for e, expert in enumerate(self.experts):
            own = chunks[e :: self.per]
            y = expert(torch.cat(own))
            for s, part in enumerate(y.split([len(c) for c in own])):
                outs[s * self.per + e] = part
        back = _AllToAll.apply(torch.cat(outs), in_splits, out_splits)
        y = torch.empty_like(back).index_copy(0, order, back)
        return (y * top.unsqueeze(1)).view(shape), aux


def is_expert(name):
    return ".experts." in name
