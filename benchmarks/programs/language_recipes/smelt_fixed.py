"""Pretrain a small GPT to a token budget with large accumulated batches.

    torchrun --nproc-per-node 2 smelt.py --token-budget 24576
"""
import argparse
import contextlib
import logging
import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("gpt")


@dataclass
class Config:
    vocab: int = 4096
    seq: int = 32
    dim: int = 96
    heads: int = 4
    layers: int = 2
    micro_batch: int = 2
    global_batch: int = 64
    token_budget: int = 24_576
    lr: float = 3e-3
    warmup_tokens: int = 4_096
    clip: float = 1.0
    seed: int = 321
    eval_every: int = 4
    eval_batches: int = 2
    bf16: bool = True


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)
        self.heads = c.heads

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.attn = Attention(c)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.seq, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for b in self.blocks:
            x = b(x)
        logits = self.norm(x) @ self.tok.weight.t()
        return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1))


class TokenStream:
    """Zipf-like unigrams with a bigram rule; one independent stream a rank."""

    def __init__(self, c: Config, seed: int):
        self.c = c
        self.gen = torch.Generator().manual_seed(seed)
        self.p = 1.0 / torch.arange(1, c.vocab + 1)

    def batch(self):
        n, c = self.c.micro_batch, self.c
        first = torch.multinomial(self.p, n, replacement=True, generator=self.gen)[:, None]
        seq = (first + 7 * torch.arange(c.seq + 1)) % 512
        return seq[:, :-1], seq[:, 1:]


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = DDP(GPT(cfg), gradient_as_bucket_view=True)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        other = [p for p in self.model.parameters() if p.dim() <= 1]
        self.opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                      {"params": other, "weight_decay": 0.0}], lr=cfg.lr, betas=(0.9, 0.95))
        assert cfg.global_batch % (cfg.micro_batch * self.world) == 0
        self.accum = cfg.global_batch // (cfg.micro_batch * self.world)
        self.train_stream = TokenStream(cfg, cfg.seed * 100 + self.rank)
        self.tokens_per_step = cfg.global_batch * cfg.seq
        self.autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=cfg.bf16)

    def lr(self, seen: int) -> float:
        c = self.cfg
        if seen < c.warmup_tokens:
            return c.lr * (seen + self.tokens_per_step) / (c.warmup_tokens + self.tokens_per_step)
        t = (seen - c.warmup_tokens) / (c.token_budget - c.warmup_tokens)
        return c.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, t))))

    def accumulate(self) -> float:
        total = 0.0
        for i in range(self.accum):
            x, y = self.train_stream.batch()
            sync = contextlib.nullcontext() if i == self.accum - 1 else self.model.no_sync()
            with sync:
                with self.autocast:
                    loss = self.model(x, y) / self.accum
                loss.backward()
            total += loss.item()
        return total

    @torch.no_grad()
    def evaluate(self) -> float:
        self.model.eval()
        stream = TokenStream(self.cfg, 10_000_019 + self.rank)
        tot = torch.zeros(())
        for _ in range(self.cfg.eval_batches):
            with self.autocast:
                tot += self.model.module(*stream.batch())
        self.model.train()
        dist.all_reduce(tot)
        return tot.item() / (self.cfg.eval_batches * self.world)

    def fit(self):
        seen, step = 0, 0
        while seen < self.cfg.token_budget:
            t0 = time.perf_counter()
            for g in self.opt.param_groups:
                g["lr"] = self.lr(seen)
            loss = self.accumulate()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.opt.step()
            self.opt.zero_grad(set_to_none=False)
            seen, step = seen + self.tokens_per_step, step + 1
            dt = time.perf_counter() - t0
            if self.rank == 0:
                log.info("step %d loss %.4f norm %.2f tokens %d %.0f tok/s", step, loss, norm, seen,
                         self.tokens_per_step / dt)
            if step % self.cfg.eval_every == 0:
                val = self.evaluate()
                if self.rank == 0:
                    log.info("step %d val %.4f", step, val)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--token-budget", type=int, default=Config.token_budget)
    ap.add_argument("--global-batch", type=int, default=Config.global_batch)
    ap.add_argument("--no-bf16", action="store_true")
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(Config(token_budget=a.token_budget, global_batch=a.global_batch, bf16=not a.no_bf16))
    trainer.fit()
    if trainer.rank == 0:
        torch.save(trainer.model.module.state_dict(), "smelt_last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
