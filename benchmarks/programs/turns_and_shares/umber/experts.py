"""Top-1 mixture layer with one expert per process."""
import torch
import torch.distributed as dist
from torch import nn


class Swap(torch.autograd.Function):
    """Exchange equal blocks between all processes; its gradient is the same exchange."""

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


class ExpertLayer(nn.Module):
    def __init__(self, width, capacity):
        super().__init__()
        self.world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.capacity = capacity
        self.gate = nn.Linear(width, self.world)
        fork = torch.Generator().manual_seed(500 + self.rank)
        self.expert = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        with torch.no_grad():
            for p in self.expert.parameters():
                p.copy_(torch.randn(p.shape, generator=fork) * (0.2 if p.dim() > 1 else 0.0))

    def forward(self, h):
        probs = self.gate(h).softmax(-1)
        weight, choice = probs.max(-1)
        boxes = h.new_zeros(self.world, self.capacity, h.shape[-1])
        seats = torch.full((len(h),), -1)
        for e in range(self.world):
            rows = (choice == e).nonzero().flatten()[:self.capacity]
            boxes[e, :len(rows)] = h[rows]
            seats[rows] = e * self.capacity + torch.arange(len(rows))
        arrived = Swap.apply(boxes)
        done = Swap.apply(self.expert(arrived))
        flat = done.flatten(0, 1)
        kept = seats >= 0
        mixed = torch.zeros_like(h)
        mixed[kept] = flat[seats[kept]] * weight[kept].unsqueeze(-1)
        share = torch.nn.functional.one_hot(choice, self.world).float().mean(0)
        balance = self.world * (share * probs.mean(0)).sum()
        return h + mixed, balance
