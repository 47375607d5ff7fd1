import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        dist.all_to_all_single(out, g.contiguous(), group=ctx.group)
        return out, None


class MoE(nn.Module):
    """Top-1 router; experts are spread over the expert-parallel group, fixed capacity."""

    def __init__(self, dim, n_experts, capacity, ep_group, ep_rank, ep_size):
        super().__init__()
        self.n_experts, self.capacity, self.group, self.ep_size = n_experts, capacity, ep_group, ep_size
        self.local = n_experts // ep_size
        self.router = nn.Linear(dim, n_experts, bias=False)
        gen = torch.Generator().manual_seed(77)
        w1 = torch.randn(n_experts, dim, 2 * dim, generator=gen) * dim ** -0.5
        w2 = torch.randn(n_experts, 2 * dim, dim, generator=gen) * (2 * dim) ** -0.5
        mine = slice(ep_rank * self.local, (ep_rank + 1) * self.local)
        self.w1, self.w2 = nn.Parameter(w1[mine].clone()), nn.Parameter(w2[mine].clone())
        for p in (self.w1, self.w2):
            p.expert = True

    def forward(self, x):
        n, d = x.shape
        probs = self.router(x).softmax(-1)
        gate, choice = probs.max(-1)
        onehot = F.one_hot(choice, self.n_experts)
        slot = (onehot.cumsum(0) * onehot).sum(-1) - 1
        keep = (slot < self.capacity).nonzero().squeeze(1)
        where = choice[keep] * self.capacity + slot[keep]
        buf = x.new_zeros(self.n_experts * self.capacity, d).index_copy(0, where, x[keep])
        recv = AllToAll.apply(buf, self.group).view(self.ep_size, self.local, self.capacity, d)
        h = recv.transpose(0, 1).reshape(self.local, -1, d)
        h = torch.bmm(F.gelu(torch.bmm(h, self.w1)), self.w2)
        h = h.view(self.local, self.ep_size, self.capacity, d).transpose(0, 1).reshape(-1, d)
        back = AllToAll.apply(h, self.group)
        out = x.new_zeros(n, d).index_copy(0, keep, back[where] * gate[keep, None])
        frac = onehot.float().mean(0)
        return x + out, self.n_experts * (frac * probs.mean(0)).sum()
