"""Top-1 mixture of experts with the experts spread over the expert-parallel group."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits, group):
        ctx.group, ctx.out_splits, ctx.in_splits = group, out_splits, in_splits
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.in_splits), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.in_splits, ctx.out_splits, group=ctx.group)
        return out, None, None, None


class ExpertParallelMoE(nn.Module):
    def __init__(self, dim, hidden, num_experts, ep_group):
        super().__init__()
        self.group = ep_group
        self.ep = dist.get_world_size(ep_group)
        self.num_local = num_experts // self.ep
        self.num_experts = num_experts
        self.router = nn.Linear(dim, num_experts, bias=False)
        # the complete set is drawn on every rank so that the result does not depend on the layout
        w1 = torch.randn(num_experts, dim, hidden) * dim ** -0.5
        w2 = torch.randn(num_experts, hidden, dim) * hidden ** -0.5
        mine = slice(dist.get_rank(ep_group) * self.num_local, (dist.get_rank(ep_group) + 1) * self.num_local)
        self.w1 = nn.Parameter(w1[mine].clone())
        self.w2 = nn.Parameter(w2[mine].clone())
        self.w1.expert_parallel = self.w2.expert_parallel = True

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.router(x).softmax(-1)
        gate, expert = probs.max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.num_experts)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        send = counts.view(self.ep, self.num_local).sum(1).tolist()
        recv = theirs.view(self.ep, self.num_local).sum(1).tolist()
        tokens = _AllToAll.apply(x[order], recv, send, self.group)

        local = torch.arange(self.num_local).repeat(self.ep).repeat_interleave(theirs)
        out = torch.zeros_like(tokens)
        for e in range(self.num_local):
            rows = (local == e).nonzero(as_tuple=True)[0]
            out = out.index_add(0, rows, F.gelu(tokens[rows] @ self.w1[e]) @ self.w2[e])
        out = _AllToAll.apply(out, send, recv, self.group)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        y = out[back] * gate.unsqueeze(1)

        load = F.one_hot(expert, self.num_experts).float().mean(0)
        aux = self.num_experts * (load * probs.mean(0)).sum()
        return y.view(shape), aux
