"""
Small GPT on a synthetic character stream.

  torchrun --standalone --nproc-per-node 2 train.py --gradient-accumulation-steps 4
"""
import argparse
import math
import os
import time
from contextlib import nullcontext

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--max-iters", type=int, default=40)
ap.add_argument("--gradient-accumulation-steps", type=int, default=4)
ap.add_argument("--batch-size", type=int, default=6)
ap.add_argument("--block-size", type=int, default=48)
ap.add_argument("--n-embd", type=int, default=72)
ap.add_argument("--n-layer", type=int, default=2)
ap.add_argument("--learning-rate", type=float, default=1e-3)
ap.add_argument("--min-lr", type=float, default=1e-4)
ap.add_argument("--warmup-iters", type=int, default=5)
ap.add_argument("--eval-interval", type=int, default=20)
cfg = ap.parse_args()

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
else:
    ddp_rank, ddp_world_size, master_process = 0, 1, True
torch.set_num_threads(1)
torch.manual_seed(1337)
ctx = nullcontext()

vocab_size = 40
_g = torch.Generator().manual_seed(4)
_words = [torch.randint(1, vocab_size, (int(n),), generator=_g) for n in torch.randint(2, 8, (60,), generator=_g)]
_order = torch.randint(0, 60, (6000,), generator=_g).tolist()
stream = torch.cat([torch.cat([_words[i], torch.zeros(1, dtype=torch.long)]) for i in _order])
cut = int(0.9 * len(stream))
splits = {"train": stream[:cut], "val": stream[cut:]}
batch_rng = torch.Generator().manual_seed(1337 + ddp_rank)


def get_batch(split):
    d = splits[split]
    ix = torch.randint(len(d) - cfg.block_size - 1, (cfg.batch_size,), generator=batch_rng)
    x = torch.stack([d[i: i + cfg.block_size] for i in ix])
    y = torch.stack([d[i + 1: i + 1 + cfg.block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h = h
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.h, C // self.h).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        d = cfg.n_embd
        self.wte, self.wpe = nn.Embedding(vocab_size, d), nn.Embedding(cfg.block_size, d)
        self.h = nn.Sequential(*[Block(d) for _ in range(cfg.n_layer)])
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1))


def get_lr(it):
    if it < cfg.warmup_iters:
        return cfg.learning_rate * (it + 1) / cfg.warmup_iters
    ratio = (it - cfg.warmup_iters) / max(1, cfg.max_iters - cfg.warmup_iters)
    return cfg.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (cfg.learning_rate - cfg.min_lr)


model = GPT()
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)

t0 = time.time()
for iter_num in range(cfg.max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % cfg.eval_interval == 0 and master_process:
        with torch.no_grad():
            v = sum(raw_model(*get_batch("val"))[1].item() for _ in range(4)) / 4
        print(f"iter {iter_num}: val loss {v:.4f}")
    lossf = 0.0
    for micro_step in range(cfg.gradient_accumulation_steps):
        X, Y = get_batch("train")
        if ddp:
            model.require_backward_grad_sync = micro_step == cfg.gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / cfg.gradient_accumulation_steps
        lossf += loss.item()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0 and master_process:
        print(f"iter {iter_num}: loss {lossf:.4f}, {time.time() - t0:.1f}s", flush=True)

if master_process:
    torch.save({"model": raw_model.state_dict(), "iter": iter_num}, "ckpt.pt")
if ddp:
    destroy_process_group()
