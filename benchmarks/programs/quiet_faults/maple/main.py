# Pretraining of a small decoder on a packed token file.
import math
import os
import shutil
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


@dataclass
class GPTConfig:
    vocab_size: int = 32
    block_size: int = 32
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head = c.n_head
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.proj = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.attn = Attention(c)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.block_size, c.n_embd)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.n_layer))
        self.ln = nn.LayerNorm(c.n_embd)
        self.head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.1)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.ln(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class TokenStream:
    def __init__(self, path, B, T, rank, world):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.B, self.T, self.rank, self.world = B, T, rank, world
        self.reset()

    def reset(self):
        self.pos = self.B * self.T * self.rank

    def next_batch(self):
        B, T = self.B, self.T
        buf = torch.from_numpy(self.tokens[self.pos:self.pos + B * T + 1].astype(np.int64))
        x, y = buf[:-1].view(B, T), buf[1:].view(B, T)
        self.pos += B * T
        if self.pos + B * T + 1 > len(self.tokens):
            self.reset()
        return x, y


def write_tokens(path, count, vocab, seed):
    succ = np.random.default_rng(0).integers(0, vocab, size=(vocab, 2))
    rng = np.random.default_rng(seed)
    out = np.empty(count, dtype=np.uint16)
    cur = 0
    choice = rng.integers(0, 2, size=count)
    jump = rng.random(count) < 0.05
    fresh = rng.integers(0, vocab, size=count)
    for i in range(count):
        out[i] = cur
        cur = fresh[i] if jump[i] else succ[cur, choice[i]]
    out.tofile(path)


def lr_at(step, max_steps, peak=8e-3, floor=5e-4, warmup=10):
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / max(1, max_steps - warmup)
    return floor + 0.5 * (1 + math.cos(math.pi * t)) * (peak - floor)


def param_groups(model, wd):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    B, T = 8, 32
    accum, max_steps = 2, 40
    holder = [tempfile.mkdtemp(prefix="tokens_") if rank == 0 else None]
    dist.broadcast_object_list(holder, src=0)
    folder = holder[0]
    if rank == 0:
        write_tokens(os.path.join(folder, "train.bin"), B * T * world * accum * max_steps + 1, 32, seed=11)
        write_tokens(os.path.join(folder, "val.bin"), B * T * world * 4 + 1, 32, seed=12)
    dist.barrier()
    torch.manual_seed(1337)
    raw = GPT(GPTConfig())
    model = DistributedDataParallel(raw)
    opt = torch.optim.AdamW(param_groups(raw, 0.1), lr=1e-3, betas=(0.9, 0.95))
    train = TokenStream(os.path.join(folder, "train.bin"), B, T, rank, world)
    val = TokenStream(os.path.join(folder, "val.bin"), B, T, rank, world)
    for step in range(max_steps):
        t0 = time.time()
        lossf = torch.zeros(())
        for micro in range(accum):
            model.require_backward_grad_sync = micro == accum - 1
            x, y = train.next_batch()
            _, loss = model(x, y)
            (loss / accum).backward()
            lossf += loss.detach() / accum
        dist.all_reduce(lossf, op=dist.ReduceOp.SUM)
        norm = torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        for group in opt.param_groups:
            group["lr"] = lr_at(step, max_steps)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if rank == 0 and step % 8 == 0:
            rate = B * T * world * accum / (time.time() - t0)
            print(f"step {step:3d} loss {lossf.item() / world:.4f} norm {norm:.3f} tok/s {rate:.0f}", flush=True)
    raw.eval()
    with torch.no_grad():
        val.reset()
        total = sum(raw(*val.next_batch())[1] for _ in range(2)) / 2
    dist.all_reduce(total)
    if rank == 0:
        print(f"val {total.item() / world:.4f}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()
