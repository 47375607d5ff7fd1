"""Routed experts spread over ranks plus one shared expert on every rank."""
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dfn
import torch.nn as nn
import torch.nn.functional as F


class SwiGLU(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class RoutedExperts(nn.Module):
    """Top-k routing with fixed-size slots: every rank sends the same amount to every
    expert, slots that stay empty travel as zeros, tokens over capacity are dropped."""

    def __init__(self, dim, hidden, n_experts, top_k, capacity, seed, group=None):
        super().__init__()
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.ep = dist.get_rank(self.group), dist.get_world_size(self.group)
        assert n_experts % self.ep == 0
        self.n_experts, self.top_k, self.capacity = n_experts, top_k, capacity
        self.local = n_experts // self.ep
        self.router = nn.Linear(dim, n_experts, bias=False)
        self.shared = SwiGLU(dim, hidden)
        mine = range(self.rank * self.local, (self.rank + 1) * self.local)
        built = []
        with torch.random.fork_rng():
            for e in mine:
                torch.manual_seed(seed * 1000 + e)
                built.append(SwiGLU(dim, hidden))
        self.experts = nn.ModuleList(built)
        for p in self.experts.parameters():
            p.is_expert = True
        self.register_buffer("bias", torch.zeros(n_experts))
        self.load = torch.zeros(n_experts)

    def route(self, x):
        score = self.router(x).sigmoid()
        idx = (score + self.bias).topk(self.top_k, -1).indices
        w = score.gather(-1, idx)
        return idx, w / (w.sum(-1, keepdim=True) + 1e-6)

    def forward(self, h):
        x = h.reshape(-1, h.shape[-1])
        idx, w = self.route(x)
        n, dim = x.shape
        flat = idx.reshape(-1)
        onehot = F.one_hot(flat, self.n_experts)
        self.load += onehot.sum(0).float()
        place = (onehot.cumsum(0) * onehot).sum(-1) - 1
        keep = place < self.capacity
        slot = flat * self.capacity + place
        token = torch.arange(n).repeat_interleave(self.top_k)

        send = x.new_zeros(self.n_experts * self.capacity, dim)
        send = send.index_put((slot[keep],), x[token[keep]])
        recv = dfn.all_to_all_single(torch.empty_like(send), send, group=self.group)
        per_expert = recv.view(self.ep, self.local, self.capacity, dim).transpose(0, 1).reshape(self.local, -1, dim)
        out = torch.stack([e(t) for e, t in zip(self.experts, per_expert)])
        out = out.view(self.local, self.ep, self.capacity, dim).transpose(0, 1).reshape(send.shape).contiguous()
        back = dfn.all_to_all_single(torch.empty_like(out), out, group=self.group)

        part = back[slot[keep]] * w.reshape(-1)[keep][:, None]
        y = torch.zeros_like(x).index_add(0, token[keep], part)
        return (y + self.shared(x)).view_as(h)

    @torch.no_grad()
    def rebalance(self, speed: float):
        """Loss-free balancing: raise the bias of idle experts, lower that of busy ones."""
        dist.all_reduce(self.load, group=self.group)
        self.bias += speed * torch.sign(self.load.mean() - self.load)
        self.load.zero_()
