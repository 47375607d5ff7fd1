"""Expert-parallel mixture of experts with uneven all-to-all."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class ExpertParallelMoE(nn.Module):
    def __init__(self, dim, hidden, n_experts):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        assert n_experts % world == 0
        self.n, self.local = n_experts, n_experts // world
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList()
        for e in range(rank * self.local, (rank + 1) * self.local):
            with torch.random.fork_rng():
                torch.manual_seed(7000 + e)           # experts are all different
                self.experts.append(nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)))
        for p in self.experts.parameters():
            p.expert = True

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probs = self.gate(flat).softmax(-1)
        weight, expert = probs.max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.n)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        send = counts.view(-1, self.local).sum(1).tolist()
        recv = theirs.view(-1, self.local).sum(1).tolist()
        inbox = AllToAll.apply(flat[order], send, recv)
        # rows arrive as (source, expert); regroup by expert
        owner = torch.repeat_interleave(torch.arange(self.local).repeat(len(recv)), theirs)
        out = torch.zeros_like(inbox)
        for e, net in enumerate(self.experts):
            rows = (owner == e).nonzero().flatten()
            out = out.index_add(0, rows, net(inbox[rows]))     # an expert may well get no rows
        back = AllToAll.apply(out, recv, send)
        y = torch.zeros_like(flat).index_copy(0, order, back) * weight[:, None]
        frac = F.one_hot(expert, self.n).float().mean(0)
        dist.all_reduce(frac)
        balance = self.n * (frac / dist.get_world_size() * probs.mean(0)).sum()
        return x + y.view_as(x), balance
