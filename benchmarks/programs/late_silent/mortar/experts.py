"""Top-1 routed feed-forward layer; every rank owns `per_rank` experts."""
import torch
import torch.distributed as dist
from torch import nn


class Exchange(torch.autograd.Function):
    """all-to-all of equal blocks (dim 0 = destination rank)."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class RoutedFeedForward(nn.Module):
    def __init__(self, dim, hidden, per_rank, capacity):
        super().__init__()
        self.world, self.per_rank, self.capacity = dist.get_world_size(), per_rank, capacity
        self.router = nn.Linear(dim, self.world * per_rank)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)) for _ in range(per_rank))

    def forward(self, x):
        n, d = x.shape
        total = self.world * self.per_rank
        gate = self.router(x).softmax(-1)
        top, where = gate.max(-1)
        onehot = torch.nn.functional.one_hot(where, total)
        slot = (onehot.cumsum(0) * onehot).sum(1) - 1
        kept = slot < self.capacity
        box = x.new_zeros(total, self.capacity, d).index_put((where[kept], slot[kept]), x[kept])
        box = Exchange.apply(box.view(self.world, self.per_rank, self.capacity, d))
        done = torch.stack([f(box[:, i].reshape(-1, d)).view(self.world, self.capacity, d)
                            for i, f in enumerate(self.experts)], dim=1)
        back = Exchange.apply(done).view(total, self.capacity, d)
        y = torch.zeros_like(x).index_put((kept.nonzero().squeeze(1),), back[where[kept], slot[kept]])
        share = onehot.float().mean(0)
        balance = total * (share * gate.mean(0)).sum()
        return x + top.unsqueeze(1) * y, balance
