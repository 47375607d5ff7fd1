import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x, out_splits, in_splits):
        ctx.group, ctx.out_splits, ctx.in_splits = group, out_splits, in_splits
        out = x.new_empty((sum(out_splits),) + x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty((sum(ctx.in_splits),) + grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), ctx.in_splits, ctx.out_splits, group=ctx.group)
        return None, out, None, None


class Experts(nn.Module):
    """The slice of experts that lives on this expert-parallel rank."""

    def __init__(self, num_local, dim, hidden):
        super().__init__()
        self.num_local = num_local
        self.w1 = nn.Parameter(torch.randn(num_local, dim, hidden) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(num_local, hidden, dim) * hidden ** -0.5)

    def forward(self, x, counts):
        # x is grouped by local expert, counts[i] rows each
        if x.shape[0] == 0:
            return x
        outs = []
        for i, chunk in enumerate(x.split(counts)):
            if chunk.shape[0]:
                outs.append(F.silu(chunk @ self.w1[i]) @ self.w2[i])
        return torch.cat(outs)


class MoELayer(nn.Module):
    def __init__(self, dim, hidden, num_experts, group):
        super().__init__()
        self.group = group
        self.ep = dist.get_world_size(group)
        self.num_experts = num_experts
        self.num_local = num_experts // self.ep
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.experts = Experts(self.num_local, dim, hidden)
        self.register_buffer("load", torch.zeros(num_experts), persistent=False)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.router(x).softmax(-1)
        gate, choice = probs.max(-1)
        order = torch.argsort(choice, stable=True)
        counts = torch.bincount(choice, minlength=self.num_experts)
        self.load.mul_(0.9).add_(counts.float(), alpha=0.1)

        # [ep, num_local]: how many rows every peer sends to each of my experts
        recv_counts = torch.empty_like(counts)
        dist.all_to_all_single(recv_counts, counts, group=self.group)
        recv_counts = recv_counts.view(self.ep, self.num_local)
        in_splits = counts.view(self.ep, self.num_local).sum(1).tolist()
        out_splits = recv_counts.sum(1).tolist()

        recv = _AllToAll.apply(self.group, x[order], out_splits, in_splits)

        # rows arrive ordered by (peer, expert); regroup by (expert, peer)
        local_ids = torch.arange(self.num_local).repeat(self.ep)
        row_ids = torch.repeat_interleave(local_ids, recv_counts.reshape(-1))
        by_expert = torch.argsort(row_ids, stable=True)
        out = self.experts(recv[by_expert], recv_counts.sum(0).tolist())
        out = out[torch.argsort(by_expert)]

        back = _AllToAll.apply(self.group, out, in_splits, out_splits)
        y = torch.zeros_like(x).index_add(0, order, back * gate[order].unsqueeze(1))
        return y.view(shape)
