"""Switch-style mixture of experts with one group of experts per rank."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, in_splits, out_splits, group):
        ctx.in_splits, ctx.out_splits, ctx.group = in_splits, out_splits, group
        out = x.new_empty(sum(out_splits), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        gin = grad.new_empty(sum(ctx.in_splits), *grad.shape[1:])
        dist.all_to_all_single(gin, grad.contiguous(), ctx.in_splits, ctx.out_splits, group=ctx.group)
        return gin, None, None, None


def all_to_all(x, in_splits, out_splits, group):
    return _AllToAll.apply(x, in_splits, out_splits, group)


class Expert(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class ExpertParallelFFN(nn.Module):
    def __init__(self, dim: int, hidden: int, experts_per_rank: int, group, init_seed: int):
        super().__init__()
        self.group = group
        self.ep = dist.get_world_size(group)
        self.per_rank = experts_per_rank
        self.n_experts = experts_per_rank * self.ep
        self.router = nn.Linear(dim, self.n_experts, bias=False)
        with torch.random.fork_rng():
            torch.manual_seed(init_seed * 100 + dist.get_rank(group))
            self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(experts_per_rank))
        for p in self.experts.parameters():
            p.expert_parallel = True
        self.last_load = torch.zeros(self.n_experts)
        self.aux_loss = torch.zeros(())

    def _run_experts(self, x: torch.Tensor, local_ids: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 0:
            return torch.empty_like(x, requires_grad=False).detach()
        order = torch.argsort(local_ids, stable=True)
        counts = torch.bincount(local_ids, minlength=self.per_rank).tolist()
        chunks = x[order].split(counts)
        out = torch.cat([e(c) for e, c in zip(self.experts, chunks)])
        return out[torch.argsort(order)]

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        shape = h.shape
        x = h.reshape(-1, shape[-1])
        probs = self.router(x).softmax(-1)
        gate, idx = probs.max(-1)

        load = torch.bincount(idx, minlength=self.n_experts)
        self.last_load = load.detach()
        self.aux_loss = self.n_experts * (load.float() / len(idx) * probs.mean(0)).sum()

        order = torch.argsort(idx, stable=True)
        send = load.view(self.ep, self.per_rank).sum(1)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send, group=self.group)
        in_splits, out_splits = send.tolist(), recv.tolist()

        ids = idx[order]
        got_ids = ids.new_empty(sum(out_splits))
        dist.all_to_all_single(got_ids, ids, out_splits, in_splits, group=self.group)
        got = all_to_all(x[order], in_splits, out_splits, self.group)

        done = self._run_experts(got, got_ids % self.per_rank)
        back = all_to_all(done, out_splits, in_splits, self.group)
        y = back[torch.argsort(order)] * gate[:, None]
        return y.reshape(shape)
