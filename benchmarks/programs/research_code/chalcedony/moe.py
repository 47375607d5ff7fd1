import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class GatherTokens(torch.autograd.Function):
    """Concatenates the tokens of all ranks; the gradient is summed over ranks and cut."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.n = len(x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        r = dist.get_rank()
        return g[r * ctx.n:(r + 1) * ctx.n]


class CombineTokens(torch.autograd.Function):
    """Sums the expert outputs of all ranks and returns the rank's own tokens."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        r, w = dist.get_rank(), dist.get_world_size()
        n = len(x) // w
        return x[r * n:(r + 1) * n].clone()

    @staticmethod
    def backward(ctx, g):
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, g.contiguous())
        return torch.cat(parts)


class Expert(nn.Module):
    def __init__(self, dim, hidden, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.w1 = nn.Parameter(torch.randn(dim, hidden, generator=g) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(hidden, dim, generator=g) * hidden ** -0.5)

    def forward(self, x):
        return F.gelu(x @ self.w1) @ self.w2


class MoELayer(nn.Module):
    def __init__(self, dim, hidden, num_experts, seed, top_k=2):
        super().__init__()
        w, r = dist.get_world_size(), dist.get_rank()
        assert num_experts % w == 0
        per = num_experts // w
        self.ids = list(range(r * per, (r + 1) * per))
        self.num_experts, self.top_k = num_experts, top_k
        self.expert_gate = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim, hidden, seed * 100 + e) for e in self.ids)
        self.last_load = torch.zeros(num_experts)

    def forward(self, x):
        prob = self.expert_gate(x).softmax(-1)
        top, idx = prob.topk(self.top_k, dim=-1)
        weight = torch.zeros_like(prob).scatter(1, idx, top / top.sum(-1, keepdim=True))
        frac = torch.zeros(self.num_experts).scatter_add(0, idx.flatten(), torch.ones(idx.numel())) / idx.numel()
        self.last_load = frac
        aux = self.num_experts * (frac * prob.mean(0)).sum()
        tokens, weights = GatherTokens.apply(x), GatherTokens.apply(weight)
        out = torch.zeros_like(tokens)
        for e, expert in zip(self.ids, self.experts):
            rows = (weights[:, e] > 0).nonzero().squeeze(1)
            y = expert(tokens[rows]) * weights[rows, e:e + 1]
            out = out.index_add(0, rows, y)
        return CombineTokens.apply(out), aux
