"""Top-1 mixture of experts with the experts spread over the processes."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Exchange(torch.autograd.Function):
    """Variable-size all-to-all of token rows; the way back is the same exchange reversed."""

    @staticmethod
    def forward(ctx, rows, send, recv):
        ctx.send, ctx.recv = send, recv
        return _exchange(rows, send, recv)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, ctx.recv, ctx.send), None, None


def _exchange(rows, send, recv):
    out = rows.new_empty((sum(recv), rows.size(1)))
    dist.all_to_all_single(out, rows.contiguous(), output_split_sizes=recv, input_split_sizes=send)
    return out


class ExpertMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class ExpertLayer(nn.Module):
    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.per_rank = experts // self.world
        self.total = experts
        self.router = nn.Linear(dim, experts, bias=False)
        everyone = [ExpertMLP(dim, hidden) for _ in range(experts)]
        self.experts = nn.ModuleList(everyone[self.rank * self.per_rank:(self.rank + 1) * self.per_rank])
        for p in self.experts.parameters():
            p.is_expert = True

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.router(x).softmax(-1)
        weight, choice = probs.max(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=self.total)
        every = [torch.empty_like(counts) for _ in range(self.world)]
        dist.all_gather(every, counts)
        table = torch.stack(every).view(self.world, self.world, self.per_rank)
        send = table[self.rank].sum(-1).tolist()
        recv = table[:, self.rank].sum(-1).tolist()
        arrived = _Exchange.apply(x[order], send, recv)
        ids = torch.cat([torch.arange(self.per_rank).repeat_interleave(table[src, self.rank])
                         for src in range(self.world)])
        out = torch.zeros_like(arrived)
        for e, expert in enumerate(self.experts):
            where = (ids == e).nonzero().squeeze(1)
            out = out.index_copy(0, where, expert(arrived[where]))
        returned = _Exchange.apply(out, recv, send)
        y = torch.zeros_like(x).index_copy(0, order, returned) * weight.unsqueeze(1)
        share = F.one_hot(choice, self.total).float().mean(0)
        balance = self.total * (share * probs.mean(0)).sum()
        return y.view(shape), balance


class MoENet(nn.Module):
    def __init__(self, features=32, dim=48, hidden=96, experts=4, depth=2, classes=8):
        super().__init__()
        self.stem = nn.Linear(features, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.layers = nn.ModuleList(ExpertLayer(dim, hidden, experts) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        penalty = x.new_zeros(())
        for norm, layer in zip(self.norms, self.layers):
            y, balance = layer(norm(x))
            x, penalty = x + y, penalty + balance
        return self.head(x), penalty / len(self.layers)


def is_expert(p):
    return getattr(p, "is_expert", False)


def synchronize_gradients(model):
    """Shared weights see only the local batch, experts have already seen everybody's tokens."""
    shared = [p for p in model.parameters() if not is_expert(p)]
    flat = torch.cat([p.grad.reshape(-1) for p in shared])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in shared:
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()
