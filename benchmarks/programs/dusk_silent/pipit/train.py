"""
Trains a character level GPT on a synthetic corpus. Runs on one process:
    $ python train.py
or data parallel:
    $ torchrun --standalone --nproc_per_node=2 train.py
"""
import argparse
import inspect
import math
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_out = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (z.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 96
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 96


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight  # weight sharing scheme

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def configure_optimizers(self, weight_decay, learning_rate):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        nodecay = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": nodecay, "weight_decay": 0.0}]
        fused = "fused" in inspect.signature(torch.optim.AdamW).parameters
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=fused)


class DataLoaderLite:
    def __init__(self, B, T, process_rank, num_processes, n_tokens=200_000, vocab=96):
        self.B, self.T, self.process_rank, self.num_processes = B, T, process_rank, num_processes
        g = torch.Generator().manual_seed(1234)
        words = [torch.randint(1, vocab, (int(n),), generator=g) for n in torch.randint(2, 7, (300,), generator=g)]
        picks = torch.randint(0, 300, (n_tokens // 4,), generator=g)
        self.tokens = torch.cat([torch.cat([words[i], torch.zeros(1, dtype=torch.long)]) for i in picks.tolist()])
        self.current_position = B * T * process_rank

    def next_batch(self):
        B, T = self.B, self.T
        buf = self.tokens[self.current_position : self.current_position + B * T + 1]
        x, y = buf[:-1].view(B, T), buf[1:].view(B, T)
        self.current_position += B * T * self.num_processes
        if self.current_position + (B * T * self.num_processes + 1) > len(self.tokens):
            self.current_position = B * T * self.process_rank
        return x, y


parser = argparse.ArgumentParser()
parser.add_argument("--total-batch-size", type=int, default=3072, help="in tokens")
parser.add_argument("--micro-batch", type=int, default=8)
parser.add_argument("--max-steps", type=int, default=80)
parser.add_argument("--out", default=None)
args = parser.parse_args()

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    dist.init_process_group(backend="gloo")
    ddp_rank, ddp_world_size = dist.get_rank(), dist.get_world_size()
else:
    ddp_rank, ddp_world_size = 0, 1
master_process = ddp_rank == 0
torch.manual_seed(1337)

B, T = args.micro_batch, 64
assert args.total_batch_size % (B * T * ddp_world_size) == 0
grad_accum_steps = args.total_batch_size // (B * T * ddp_world_size)
if master_process:
    print(f"total desired batch size: {args.total_batch_size} => gradient accumulation steps: {grad_accum_steps}")

train_loader = DataLoaderLite(B, T, ddp_rank, ddp_world_size)
model = GPT(GPTConfig())
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model

max_lr, min_lr, warmup_steps = 1e-3, 1e-4, 15


def get_lr(it):
    if it < warmup_steps:
        return max_lr * (it + 1) / warmup_steps
    decay_ratio = min(1.0, (it - warmup_steps) / (args.max_steps - warmup_steps))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * decay_ratio)) * (max_lr - min_lr)


optimizer = raw_model.configure_optimizers(weight_decay=0.1, learning_rate=max_lr)

for step in range(args.max_steps):
    t0 = time.time()
    model.train()
    optimizer.zero_grad()
    loss_accum = torch.zeros(())
    for micro_step in range(grad_accum_steps):
        x, y = train_loader.next_batch()
        if ddp:
            model.require_backward_grad_sync = micro_step == grad_accum_steps - 1
        logits, loss = model(x, y)
        # scale the loss to account for gradient accumulation, the objective is a mean over all micro batches
        loss = loss / grad_accum_steps
        loss_accum += loss.detach()
        loss.backward()
    if ddp:
        dist.all_reduce(loss_accum, op=dist.ReduceOp.SUM)
        loss_accum /= ddp_world_size
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    lr = get_lr(step)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    optimizer.step()
    if master_process and step % 10 == 0:
        dt = time.time() - t0
        print(f"step {step:4d} | loss {loss_accum.item():.6f} | lr {lr:.4e} | norm {norm:.4f} | dt {dt*1000:.1f}ms")

if args.out and master_process:
    torch.save({"model": raw_model.state_dict(), "config": raw_model.config}, os.path.join(args.out, "model.pt"))
if ddp:
    dist.destroy_process_group()
