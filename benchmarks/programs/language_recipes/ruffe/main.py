"""Expert-parallel MoE language model with a shared expert and bias balancing.

    torchrun --nproc-per-node 2 ruffe/main.py
"""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from experts import RoutedExperts

log = logging.getLogger("moe")


@dataclass
class Config:
    vocab: int = 60
    seq: int = 16
    dim: int = 40
    hidden: int = 60
    heads: int = 4
    layers: int = 2
    n_experts: int = 4
    top_k: int = 2
    capacity_factor: float = 2.0
    global_batch: int = 8
    steps: int = 24
    lr: float = 4e-3
    warmup: int = 5
    clip: float = 1.0
    bias_speed: float = 0.01
    seed: int = 15
    log_every: int = 4


class Layer(nn.Module):
    def __init__(self, c: Config, i: int, capacity: int):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.out = nn.Linear(c.dim, 3 * c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)
        self.heads = c.heads
        self.moe = RoutedExperts(c.dim, c.hidden, c.n_experts, c.top_k, capacity, c.seed + i)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(B, T, C))
        return x + self.moe(self.n2(x))


class MoELM(nn.Module):
    def __init__(self, c: Config, world: int):
        super().__init__()
        tokens = c.global_batch // world * c.seq
        capacity = math.ceil(c.capacity_factor * tokens * c.top_k / c.n_experts)
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.seq, c.dim)
        self.layers = nn.ModuleList(Layer(c, i, capacity) for i in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class GradSync:
    """Dense gradients: mean over ranks. Expert gradients already hold the sum over all
    ranks' tokens (through the all-to-all), so they only get the same 1/world."""

    def __init__(self, model: nn.Module):
        self.world = dist.get_world_size()
        self.dense = [p for p in model.parameters() if not getattr(p, "is_expert", False)]
        self.expert = [p for p in model.parameters() if getattr(p, "is_expert", False)]

    def sync(self):
        flat = torch.cat([p.grad.flatten() for p in self.dense])
        dist.all_reduce(flat)
        flat /= self.world
        for p, g in zip(self.dense, flat.split([p.numel() for p in self.dense])):
            p.grad.copy_(g.view_as(p))
        for p in self.expert:
            p.grad /= self.world

    def clip(self, max_norm: float) -> float:
        sq = sum(p.grad.pow(2).sum() for p in self.expert)
        dist.all_reduce(sq)
        sq = sq + sum(p.grad.pow(2).sum() for p in self.dense)
        scale = (max_norm / (sq.sqrt() + 1e-6)).clamp(max=1.0)
        for p in self.dense + self.expert:
            p.grad.mul_(scale)
        return sq.sqrt().item()


def batches(c: Config, rank: int, world: int):
    g = torch.Generator().manual_seed(c.seed * 3)
    while True:
        start = torch.randint(0, c.vocab, (c.global_batch, 1), generator=g)
        stride = torch.randint(1, 6, (c.global_batch, 1), generator=g)
        rows = (start + stride * torch.arange(c.seq + 1)) % c.vocab
        mine = rows.chunk(world)[rank]
        yield mine[:, :-1], mine[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--capacity-factor", type=float, default=Config.capacity_factor)
    ap.add_argument("--save", default="ruffe.rank{}.pt")
    a = ap.parse_args()
    c = Config(steps=a.steps, capacity_factor=a.capacity_factor)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(c.seed)
    model = MoELM(c, world)
    sync = GradSync(model)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / c.warmup) * (1 - 0.9 * s / c.steps))
    data = batches(c, rank, world)
    for step in range(c.steps):
        x, y = next(data)
        loss = F.cross_entropy(model(x).reshape(-1, c.vocab), y.reshape(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        sync.sync()
        norm = sync.clip(c.clip)
        opt.step()
        sched.step()
        seen = model.layers[0].moe.load.clone()
        for layer in model.layers:
            layer.moe.rebalance(c.bias_speed)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and step % c.log_every == 0:
            log.info("step %2d loss %.4f gnorm %.3f local load %s", step, mean / world, norm, seen.int().tolist())
    torch.save(model.state_dict(), a.save.format(rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
