"""Byte-level GPT on a memory-mapped file, random windows, gradient accumulation."""
import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--max_iters", type=int, default=24)
    p.add_argument("--block_size", type=int, default=32)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--grad_accum", type=int, default=4, help="over all processes")
    p.add_argument("--eval_interval", type=int, default=12)
    p.add_argument("--eval_iters", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--seed", type=int, default=1337)
    return p.parse_args()


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = [z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for z in self.qkv(x).split(c, dim=2)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self, vocab, block, width=48, heads=4, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.h = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (2 * depth) ** 0.5 if "proj" in name else 0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for layer in self.h:
            x = layer(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def prepare(folder):
    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in rng.integers(0, 20, rng.integers(2, 6))) for _ in range(40)]
    for name, count in (("train", 6000), ("val", 1500)):
        text = " ".join(words[i] for i in rng.zipf(1.4, count) % 40)
        data = np.array([0 if ch == " " else ord(ch) - 96 for ch in text], dtype=np.uint16)
        data.tofile(os.path.join(folder, f"{name}.bin"))


class Windows:
    """Uniform random windows, drawn with replacement."""

    def __init__(self, folder, block, batch, seed):
        self.folder, self.block, self.batch = folder, block, batch
        self.gen = torch.Generator().manual_seed(seed)

    def get(self, split, gen=None):
        data = np.memmap(os.path.join(self.folder, f"{split}.bin"), dtype=np.uint16, mode="r")
        at = torch.randint(len(data) - self.block - 1, (self.batch,), generator=gen or self.gen)
        rows = torch.stack([torch.from_numpy(data[i:i + self.block + 1].astype(np.int64)) for i in at])
        return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def estimate(model, windows, a, rank):
    model.eval()
    out = {}
    for split in ("train", "val"):
        gen = torch.Generator().manual_seed(9000 + rank)
        mean = torch.stack([model(*windows.get(split, gen)) for _ in range(a.eval_iters)]).mean()
        dist.all_reduce(mean)
        out[split] = mean.item() / dist.get_world_size()
    model.train()
    return out


def rate(it, a):
    if it < a.warmup:
        return a.lr * (it + 1) / (a.warmup + 1)
    return 0.1 * a.lr + 0.45 * a.lr * (1 + math.cos(math.pi * (it - a.warmup) / (a.max_iters - a.warmup)))


def main():
    a = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert a.grad_accum % world == 0
    accum = a.grad_accum // world
    box = [tempfile.mkdtemp(prefix="bytes_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    if rank == 0:
        prepare(box[0])
    dist.barrier()
    torch.manual_seed(a.seed + rank)
    windows = Windows(box[0], a.block_size, a.batch_size, a.seed + rank)
    raw = Gpt(27, a.block_size)
    model = DDP(raw)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.1)
    x, y = windows.get("train")
    t0 = time.time()
    for it in range(a.max_iters):
        for group in opt.param_groups:
            group["lr"] = rate(it, a)
        if it % a.eval_interval == 0:
            losses = estimate(raw, windows, a, rank)
            if rank == 0:
                print(f"iter {it}: train {losses['train']:.4f} val {losses['val']:.4f}", flush=True)
        for micro in range(accum):
            model.require_backward_grad_sync = micro == accum - 1
            loss = model(x, y) / accum
            x, y = windows.get("train")
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if rank == 0 and it % 6 == 0:
            print(f"iter {it} loss {loss.item() * accum:.4f} ({time.time() - t0:.1f}s)", flush=True)
    losses = estimate(raw, windows, a, rank)
    if rank == 0:
        print(f"final: train {losses['train']:.4f} val {losses['val']:.4f}", flush=True)
        torch.save({"model": raw.state_dict(), "opt": opt.state_dict()},
                   os.path.join(box[0], "ckpt.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
