"""Packed-sequence language model: several documents per row, block-diagonal attention."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

VOCAB = 64
_MASK_CACHE = {}


def packed_attention_mask(lengths, total):
    """Boolean mask (rows, 1, T, T); True where a query may look at a key."""
    key = (tuple(tuple(row) for row in lengths), total)
    cached = _MASK_CACHE.get(key)
    if cached is not None:
        return cached
    rows = []
    for row in lengths:
        doc = torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row))
        rows.append(doc[:, None] == doc[None, :])
    causal = torch.ones(total, total, dtype=torch.bool).tril()
    mask = (torch.stack(rows) & causal).unsqueeze(1)
    mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    _MASK_CACHE[key] = mask
    return mask


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class PackedLM(nn.Module):
    def __init__(self, dim=48, heads=4, layers=2, max_len=256):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens, lengths):
        t = tokens.shape[1]
        x = self.tok(tokens) + self.pos(torch.arange(t))
        mask = packed_attention_mask(lengths, t)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def pack(generator, rows, total):
    lengths, tokens = [], torch.empty(rows, total, dtype=torch.long)
    for r in range(rows):
        left, row, start = total, [], 0
        while left:
            n = min(left, int(torch.randint(8, 48, (1,), generator=generator)))
            first, stride = torch.randint(1, VOCAB, (2,), generator=generator).tolist()
            tokens[r, start:start + n] = (first + stride * torch.arange(n)) % VOCAB
            row.append(n)
            start, left = start + n, left - n
        lengths.append(row)
    return tokens, lengths


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=110)
    p.add_argument("--rows", type=int, default=16)
    p.add_argument("--seq-len", type=int, default=160)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DistributedDataParallel(PackedLM())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = torch.Generator().manual_seed(1000 + rank)
    tick = time.perf_counter()
    for step in range(1, args.steps + 1):
        tokens, lengths = pack(data, args.rows, args.seq_len)
        logits = model(tokens, lengths)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            shown = loss.detach()
            dist.all_reduce(shown)
            if rank == 0:
                ms = (time.perf_counter() - tick) * 100
                print(f"step {step:4d} loss {shown.item() / dist.get_world_size():.4f} {ms:.0f} ms/step", flush=True)
            tick = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
