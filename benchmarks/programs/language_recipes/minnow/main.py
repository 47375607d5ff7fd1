"""Tensor parallel training with DTensor plans, sequence parallel norms and a sharded loss.

    torchrun --nproc-per-node 2 minnow/main.py

All ranks of the tensor-parallel group read the same batches; they hold different
slices of the attention and MLP weights.
"""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                               SequenceParallel, loss_parallel, parallelize_module)

log = logging.getLogger("tp")


@dataclass
class Config:
    vocab: int = 64
    seq: int = 16
    dim: int = 48
    heads: int = 4
    layers: int = 2
    batch: int = 8
    steps: int = 24
    lr: float = 4e-3
    warmup: int = 5
    clip: float = 1.0
    seed: int = 71
    log_every: int = 4


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.head_dim = c.dim // c.heads
        self.wq = nn.Linear(c.dim, c.dim, bias=False)
        self.wk = nn.Linear(c.dim, c.dim, bias=False)
        self.wv = nn.Linear(c.dim, c.dim, bias=False)
        self.wo = nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (w(x).view(B, T, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))


class FeedForward(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.w1 = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.w2 = nn.Linear(3 * c.dim, c.dim, bias=False)
        self.w3 = nn.Linear(c.dim, 3 * c.dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.attention, self.feed_forward = Attention(c), FeedForward(c)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, ids):
        h = self.tok(ids)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


def apply_tp(model: Transformer, mesh):
    parallelize_module(model, mesh, {
        "tok": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    })
    for layer in model.layers:
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        })
    return model


def batches(c: Config):
    g = torch.Generator().manual_seed(c.seed + 1)
    while True:
        start = torch.randint(0, c.vocab, (c.batch, 1), generator=g)
        stride = torch.randint(1, 5, (c.batch, 1), generator=g)
        rows = (start + stride * torch.arange(c.seq + 1)) % c.vocab
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def full_norm(norm: torch.Tensor) -> float:
    return norm.full_tensor().item() if isinstance(norm, DTensor) else norm.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--lr", type=float, default=Config.lr)
    ap.add_argument("--save", default="minnow_full.pt")
    a = ap.parse_args()
    c = Config(steps=a.steps, lr=a.lr)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert c.heads % world == 0 and c.seq % world == 0
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(c.seed)
    model = apply_tp(Transformer(c), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / c.warmup) * (0.55 + 0.45 * math.cos(math.pi * s / c.steps)))
    data = batches(c)
    for step in range(c.steps):
        x, y = next(data)
        with loss_parallel():
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), c.clip, foreach=False)
        opt.step()
        sched.step()
        gnorm = full_norm(norm)
        value = loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item()
        if rank == 0 and (step % c.log_every == 0 or step == c.steps - 1):
            log.info("step %2d loss %.4f gnorm %.3f", step, value, gnorm)
    full = {k: (p.full_tensor() if isinstance(p, DTensor) else p).detach() for k, p in model.named_parameters()}
    if rank == 0:
        torch.save(full, a.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
