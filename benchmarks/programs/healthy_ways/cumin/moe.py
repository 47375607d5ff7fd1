"""Expert-parallel feed-forward block: one group of experts on each rank."""
import torch
import torch.distributed as dist
import torch.nn as nn


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


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


class ExpertParallelFFN(nn.Module):
    def __init__(self, dim, hidden, per_rank, seed):
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.per_rank, self.total = per_rank, per_rank * self.world
        self.gate = nn.Linear(dim, self.total, bias=False)
        with torch.random.fork_rng():
            torch.manual_seed(seed + 101 * self.rank)
            self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(per_rank))
        for p in self.experts.parameters():
            p.expert = True

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        probs = self.gate(tokens).softmax(-1)
        weight, choice = probs.max(-1)
        load = torch.bincount(choice, minlength=self.total)
        balance = self.total * (load.float() / len(tokens) * probs.mean(0)).sum()

        order = choice.argsort(stable=True)
        send = load.view(self.world, self.per_rank)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send.contiguous())
        n_send, n_recv = send.sum(1).tolist(), recv.sum(1).tolist()
        mine = AllToAll.apply(tokens[order], n_send, n_recv)

        owner = torch.repeat_interleave(torch.arange(self.per_rank).repeat(self.world), recv.flatten())
        out = torch.zeros_like(mine)
        for k, expert in enumerate(self.experts):
            rows = (owner == k).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(mine[rows]))
        back = AllToAll.apply(out, n_recv, n_send)
        y = torch.empty_like(tokens).index_copy(0, order, back)
        return (y * weight[:, None]).view_as(x), balance, load
