"""Identity embeddings with a class-sharded margin softmax: the backbone is data parallel, each rank owns its classes."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class GatherRows(torch.autograd.Function):
    """All rows of all ranks; the backward sums the cotangents over ranks and keeps the own rows."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size())[dist.get_rank()]


class ShardedCrossEntropy(torch.autograd.Function):
    """Softmax over classes that lie on several ranks; the logits' gradient needs no further exchange."""

    @staticmethod
    def forward(ctx, logits, local_label):
        top = logits.max(1, keepdim=True).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        e = (logits - top).exp()
        total = e.sum(1, keepdim=True)
        dist.all_reduce(total)
        prob = e / total
        hit = (local_label >= 0).nonzero().squeeze(1)
        picked = torch.zeros(len(logits))
        picked[hit] = prob[hit, local_label[hit]]
        dist.all_reduce(picked)
        grad = prob.clone()
        grad[hit, local_label[hit]] -= 1
        ctx.save_for_backward(grad / len(logits))
        return -picked.clamp_min(1e-12).log().mean()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None


class ShardedHead(nn.Module):
    def __init__(self, classes, dim, scale=16.0, margin=0.2):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.per, self.first = classes // world, rank * (classes // world)
        self.scale, self.margin = scale, margin
        self.weight = nn.Parameter(torch.randn(self.per, dim, generator=torch.Generator().manual_seed(600 + rank)))

    def forward(self, features, labels):
        feats = F.normalize(GatherRows.apply(features))
        parts = [torch.empty_like(labels) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, labels)
        local = torch.cat(parts) - self.first
        local = torch.where((local >= 0) & (local < self.per), local, torch.full_like(local, -1))
        cos = feats @ F.normalize(self.weight).t()
        push = torch.zeros_like(cos)
        hit = (local >= 0).nonzero().squeeze(1)
        push[hit, local[hit]] = self.margin
        return ShardedCrossEntropy.apply(self.scale * (cos - push), local)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=120)
    ap.add_argument("--steps", type=int, default=200)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    backbone = DDP(nn.Sequential(nn.Linear(40, 128), nn.LayerNorm(128), nn.PReLU(), nn.Linear(128, 48)))
    head = ShardedHead(args.classes, 48)
    opt = torch.optim.SGD([
        {"params": backbone.parameters(), "lr": 0.05 * world},
        {"params": head.parameters(), "lr": 0.2}], momentum=0.9)
    faces = torch.randn(args.classes, 40, generator=torch.Generator().manual_seed(2))
    gen = torch.Generator().manual_seed(30 + rank)
    for step in range(args.steps):
        y = torch.randint(0, args.classes, (64,), generator=gen)
        x = faces[y] + 0.4 * torch.randn(64, 40, generator=gen)
        loss = head(backbone(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
