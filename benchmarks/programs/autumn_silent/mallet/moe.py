import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.splits = (send, recv)
        out = x.new_empty((sum(recv),) + x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, recv = ctx.splits
        out = grad.new_empty((sum(send),) + grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), send, recv)
        return out, None, None


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


class ExpertParallelMoE(nn.Module):
    """Top-1 routed experts, spread over all ranks of the data-parallel group."""

    def __init__(self, dim, hidden, num_experts):
        super().__init__()
        self.world = dist.get_world_size()
        self.num_local = num_experts // self.world
        self.num_experts = num_experts
        self.router = nn.Linear(dim, num_experts, bias=False)
        every = [Expert(dim, hidden) for _ in range(num_experts)]
        first = dist.get_rank() * self.num_local
        self.experts = nn.ModuleList(every[first:first + self.num_local])
        for p in self.experts.parameters():
            p.is_expert = True

    def forward(self, x):
        probs = F.softmax(self.router(x), dim=-1)
        gate, choice = probs.max(dim=-1)
        order = torch.argsort(choice, stable=True)
        counts = torch.bincount(choice, minlength=self.num_experts)

        recv_counts = torch.empty_like(counts)
        dist.all_to_all_single(recv_counts, counts)
        send = counts.view(self.world, self.num_local).sum(1).tolist()
        recv = recv_counts.view(self.world, self.num_local).sum(1).tolist()
        tokens = _AllToAll.apply(x[order], send, recv)

        owner = torch.arange(self.num_local).repeat(self.world).repeat_interleave(recv_counts)
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            rows = (owner == i).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(tokens[rows]))
        back = _AllToAll.apply(out, recv, send)

        y = torch.zeros_like(x).index_add(0, order, back)
        load = counts.float() / counts.sum()
        aux = self.num_experts * (load * probs.mean(0)).sum()
        return y * gate.unsqueeze(1), aux
