"""CLIP-like training: local rows against the columns of all ranks, gradients flow through the gather."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        start = dist.get_rank() * ctx.rows
        return grad[start:start + ctx.rows]


class TwoTowers(nn.Module):
    def __init__(self, a_dim, b_dim, emb):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(a_dim, 64), nn.GELU(), nn.Linear(64, emb))
        self.b = nn.Sequential(nn.Linear(b_dim, 64), nn.GELU(), nn.Linear(64, emb))
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a, b):
        return F.normalize(self.a(a), dim=-1), F.normalize(self.b(b), dim=-1), self.log_scale.exp()


def contrastive(za, zb, scale):
    all_a, all_b = GatherRows.apply(za), GatherRows.apply(zb)
    target = torch.arange(len(za)) + dist.get_rank() * len(za)
    return (F.cross_entropy(scale * za @ all_b.T, target) + F.cross_entropy(scale * zb @ all_a.T, target)) / 2


def pairs(n=768):
    g = torch.Generator().manual_seed(20)
    z = torch.randn(n, 6, generator=g)
    return TensorDataset(z @ torch.randn(6, 20, generator=g), (z @ torch.randn(6, 14, generator=g)).tanh())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = pairs()
    sampler = DistributedSampler(data, seed=5, drop_last=True)
    loader = DataLoader(data, batch_size=24, sampler=sampler, drop_last=True)
    towers = DDP(TwoTowers(20, 14, 16))
    opt = torch.optim.AdamW(towers.parameters(), lr=2e-3)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for a, b in loader:
            loss = contrastive(*towers(a, b))
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                towers.module.log_scale.clamp_(0, math.log(100))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
