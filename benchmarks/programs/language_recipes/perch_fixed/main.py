"""Pretrain a small mixture-of-experts LM, experts spread over the ranks.

    torchrun --nproc-per-node 3 perch/main.py
"""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from data import VOCAB, DomainMixture
from moe import ExpertParallelFFN

logger = logging.getLogger("moe-pretrain")


@dataclass
class Config:
    dim: int = 48
    heads: int = 4
    layers: int = 2
    moe_every: int = 2
    hidden: int = 96
    experts_per_rank: int = 1
    seq_len: int = 16
    batch: int = 4
    steps: int = 50
    lr: float = 6e-3
    warmup: int = 10
    aux_coef: float = 0.0
    seed: int = 3
    log_every: int = 10


class Layer(nn.Module):
    def __init__(self, cfg: Config, group, index: int):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(cfg.dim), nn.RMSNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.out = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.heads = cfg.heads
        self.sparse = index % cfg.moe_every == cfg.moe_every - 1
        if self.sparse:
            self.ffn = ExpertParallelFFN(cfg.dim, cfg.hidden, cfg.experts_per_rank, group, cfg.seed + index)
        else:
            self.ffn = nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, cfg.dim))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(B, T, C))
        return x + self.ffn(self.n2(x))


class MoELM(nn.Module):
    def __init__(self, cfg: Config, group):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, cfg.dim)
        self.pos = nn.Embedding(cfg.seq_len, cfg.dim)
        self.layers = nn.ModuleList(Layer(cfg, group, i) for i in range(cfg.layers))
        self.norm = nn.RMSNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, VOCAB, bias=False)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def aux_loss(self):
        return sum(layer.ffn.aux_loss for layer in self.layers if layer.sparse)


def sync_gradients(model: nn.Module, world: int):
    """Average replicated gradients; expert gradients only need the scale."""
    dense = [p for p in model.parameters() if not getattr(p, "expert_parallel", False)]
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in dense])
    dist.all_reduce(flat)
    flat /= world
    off = 0
    for p in dense:
        p.grad = flat[off:off + p.numel()].view_as(p).clone()
        off += p.numel()
    for p in model.parameters():
        if getattr(p, "expert_parallel", False) and p.grad is not None:
            p.grad /= world


def lr_at(step: int, cfg: Config) -> float:
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    t = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return cfg.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * t)))


def train(cfg: Config):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    model = MoELM(cfg, dist.group.WORLD)
    data = DomainMixture(cfg.seq_len, cfg.batch, cfg.seed, rank, schedule=[
        (15, [0.5, 0.4, 0.1]),
        (24, [0.2, 0.5, 0.3]),
        (cfg.steps, [0.0, 0.0, 1.0]),
    ])
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(cfg.steps):
        for g in opt.param_groups:
            g["lr"] = lr_at(step, cfg)
        batch = data.next(step)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
        opt.zero_grad(set_to_none=True)
        (loss + cfg.aux_coef * model.aux_loss()).backward()
        sync_gradients(model, world)
        opt.step()
        if step % cfg.log_every == 0 or step == cfg.steps - 1:
            stat = torch.cat([loss.detach()[None], *(l.ffn.last_load.float() for l in model.layers if l.sparse)])
            dist.all_reduce(stat)
            if rank == 0:
                logger.info("step %3d loss %.4f load %s", step, stat[0] / world,
                            [int(v) for v in stat[1:]])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--aux-coef", type=float, default=Config.aux_coef)
    ap.add_argument("--seed", type=int, default=Config.seed)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(Config(steps=a.steps, aux_coef=a.aux_coef, seed=a.seed))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
