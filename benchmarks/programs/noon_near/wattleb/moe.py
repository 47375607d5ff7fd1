import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.group)
        return None, out


class ExpertBank(nn.Module):
    def __init__(self, local, dim, hidden, generator):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(local, dim, hidden, generator=generator) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(local, hidden, dim, generator=generator) * hidden ** -0.5)

    def forward(self, x):
        return torch.bmm(F.gelu(torch.bmm(x, self.w1)), self.w2)


class MoELayer(nn.Module):
    """Top-1 switch layer, experts spread over the expert-parallel group."""

    def __init__(self, dim, hidden, experts, ep_group, ep_rank, ep_size, seed, capacity_factor=1.5):
        super().__init__()
        self.experts, self.ep_group, self.ep_size = experts, ep_group, ep_size
        self.local = experts // ep_size
        self.capacity_factor = capacity_factor
        self.gate = nn.Linear(dim, experts, bias=False)
        self.bank = ExpertBank(self.local, dim, hidden, torch.Generator().manual_seed(seed + ep_rank))
        for p in self.bank.parameters():
            p.is_expert = True

    def forward(self, x):
        n, d = x.shape
        cap = int(self.capacity_factor * n / self.experts)
        probs = self.gate(x).softmax(-1)
        weight, choice = probs.max(-1)
        onehot = F.one_hot(choice, self.experts)
        slot = (onehot.cumsum(0) * onehot).sum(-1) - 1
        keep = slot < cap
        rows = (choice * cap + slot)[keep]
        buf = x.new_zeros(self.experts * cap, d).index_copy(0, rows, x[keep])
        sent = _AllToAll.apply(self.ep_group, buf)
        sent = sent.view(self.ep_size, self.local, cap, d).transpose(0, 1).reshape(self.local, self.ep_size * cap, d)
        done = self.bank(sent)
        done = done.view(self.local, self.ep_size, cap, d).transpose(0, 1).reshape(-1, d)
        back = _AllToAll.apply(self.ep_group, done)
        out = x.new_zeros(n, d).index_copy(0, keep.nonzero().squeeze(1), back[rows])
        load = onehot.float().mean(0)
        self.balance = self.experts * (load * probs.mean(0)).sum()
        return out * weight.unsqueeze(-1)
