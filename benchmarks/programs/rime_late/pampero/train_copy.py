"""Tiny decoder-only model on the 'repeat the prefix' task, in the manner of one-file trainers.

    torchrun --nproc-per-node 2 train_copy.py --max_iters 400
    torchrun --nproc-per-node 2 train_copy.py --max_iters 800 --init_from resume
"""
import argparse
import math
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
p.add_argument("--out_dir", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "out"))
p.add_argument("--init_from", choices=["scratch", "resume"], default="scratch")
p.add_argument("--max_iters", type=int, default=400)
p.add_argument("--eval_interval", type=int, default=200)
p.add_argument("--gradient_accumulation_steps", type=int, default=2)
p.add_argument("--batch_size", type=int, default=16)
p.add_argument("--vocab", type=int, default=20)
p.add_argument("--half", type=int, default=8)
p.add_argument("--n_embd", type=int, default=48)
p.add_argument("--learning_rate", type=float, default=3e-3)
p.add_argument("--min_lr", type=float, default=3e-4)
p.add_argument("--warmup_iters", type=int, default=80)
p.add_argument("--lr_decay_iters", type=int, default=800)
cfg = p.parse_args()


class Block(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, length, dim):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(Block(dim, 4, length), Block(dim, 4, length))
        self.ln, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        logits = self.head(self.ln(self.blocks(x)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def get_batch(split, it, micro, rank, world):
    seed = ((it * 64 + micro) * world + rank) * 2 + (split == "val")
    g = torch.Generator().manual_seed(seed)
    prefix = torch.randint(0, cfg.vocab, (cfg.batch_size, cfg.half), generator=g)
    seq = torch.cat([prefix, prefix], 1)
    targets = seq[:, 1:].clone()
    targets[:, : cfg.half - 1] = -1
    return seq[:, :-1], targets


def get_lr(it):
    if it < cfg.warmup_iters:
        return cfg.learning_rate * (it + 1) / (cfg.warmup_iters + 1)
    if it > cfg.lr_decay_iters:
        return cfg.min_lr
    ratio = (it - cfg.warmup_iters) / (cfg.lr_decay_iters - cfg.warmup_iters)
    return cfg.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (cfg.learning_rate - cfg.min_lr)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    master = rank == 0
    if master:
        os.makedirs(cfg.out_dir, exist_ok=True)
    torch.manual_seed(1337)
    raw_model = GPT(cfg.vocab, 2 * cfg.half, cfg.n_embd)
    optimizer = torch.optim.AdamW(raw_model.parameters(), lr=cfg.learning_rate, betas=(0.9, 0.95))
    iter_num, best = 0, float("inf")
    ckpt_path = os.path.join(cfg.out_dir, "ckpt.pt")
    if cfg.init_from == "resume":
        ckpt = torch.load(ckpt_path, map_location="cpu")
        raw_model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        iter_num, best = ckpt["iter_num"], ckpt["best"]
    model = DDP(raw_model)

    @torch.no_grad()
    def estimate():
        model.eval()
        total = torch.zeros(1)
        for k in range(10):
            total += raw_model(*get_batch("val", 0, k, rank, world))[1]
        dist.all_reduce(total)
        model.train()
        return total.item() / (10 * world)

    local_iter_num = 0
    t0 = time.time()
    while iter_num < cfg.max_iters:
        lr = get_lr(iter_num)
        for group in optimizer.param_groups:
            group["lr"] = lr
        for micro in range(cfg.gradient_accumulation_steps):
            last = micro == cfg.gradient_accumulation_steps - 1
            with nullcontext() if last else model.no_sync():
                _, loss = model(*get_batch("train", iter_num, micro, rank, world))
                (loss / cfg.gradient_accumulation_steps).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        local_iter_num += 1
        if iter_num % cfg.eval_interval == 0 or iter_num == cfg.max_iters:
            val = estimate()
            best = min(best, val)
            if master:
                per_iter = 1000 * (time.time() - t0) / local_iter_num
                print(f"iter {iter_num}: train {loss.item():.4f} val {val:.4f} {per_iter:.0f} ms/iter", flush=True)
                torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(),
                            "iter_num": iter_num, "best": best}, ckpt_path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
