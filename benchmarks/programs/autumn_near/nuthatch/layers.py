import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous())
        return y

    @staticmethod
    def backward(ctx, g):
        y = torch.empty_like(g)
        dist.all_to_all_single(y, g.contiguous())
        return y


class ExpertChoice(nn.Module):
    """Experts pick their best tokens on every rank; two experts live on each rank."""

    def __init__(self, dim, hidden, local_experts=2, fraction=0.4):
        super().__init__()
        self.world, self.le, self.fraction = dist.get_world_size(), local_experts, fraction
        self.router = nn.Linear(dim, self.world * local_experts, bias=False)
        g = torch.Generator().manual_seed(1234 + dist.get_rank())
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
                                     for _ in range(local_experts))
        for p in self.experts.parameters():
            p.expert = True
            with torch.no_grad():
                p.normal_(0, 0.1 if p.dim() > 1 else 0.0, generator=g)

    def forward(self, x):
        n, d = x.shape
        k = int(n * self.fraction)
        prob = self.router(x).softmax(-1)
        w, idx = prob.t().topk(k, dim=1)
        send = x[idx.flatten()]
        got = _Swap.apply(send).view(self.world, self.le, k, d)
        out = torch.stack([e(got[:, i].reshape(-1, d)).view(self.world, k, d) for i, e in enumerate(self.experts)], 1)
        back = _Swap.apply(out.reshape(-1, d))
        return x + torch.zeros_like(x).index_add(0, idx.flatten(), back * w.flatten()[:, None])


class Model(nn.Module):
    def __init__(self, d_in, dim, classes):
        super().__init__()
        self.stem = nn.Linear(d_in, dim)
        self.n1, self.moe = nn.LayerNorm(dim), ExpertChoice(dim, 2 * dim)
        self.n2, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.n2(self.moe(self.n1(F.gelu(self.stem(x))))))
