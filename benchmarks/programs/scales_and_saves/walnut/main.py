"""Tiny decoder on "which token is larger" strings; the MLPs are split over the processes.

All processes work on the same batch, so the batch generator is seeded alike.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parallel import SplitMLP, clip_gradients

SYMBOLS = 23
EQ = SYMBOLS


def batch_of(n, gen):
    a = torch.randint(0, SYMBOLS, (n,), generator=gen)
    b = torch.randint(0, SYMBOLS, (n,), generator=gen)
    return torch.stack([a, b, torch.full_like(a, EQ)], 1), torch.maximum(a, b)


class Block(nn.Module):
    def __init__(self, width, heads, hidden, layer):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = SplitMLP(width, hidden, layer)
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(att.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class Decoder(nn.Module):
    def __init__(self, width=32, heads=4, hidden=128, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(SYMBOLS + 1, width), nn.Parameter(torch.randn(3, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, i) for i in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.ln(x[:, -1]))


def save(model, folder, rank):
    os.makedirs(folder, exist_ok=True)
    split = {n: p.detach() for n, p in model.named_parameters() if getattr(p, "tp_sharded", False)}
    torch.save(split, os.path.join(folder, f"mlp.tp{rank}.pt"))
    if rank == 0:
        rest = {n: p.detach() for n, p in model.named_parameters() if not getattr(p, "tp_sharded", False)}
        torch.save(rest, os.path.join(folder, "common.pt"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--clip", type=float, default=0.5)
    ap.add_argument("--lr", type=float, default=0.2)
    ap.add_argument("--folder", default="tp_run")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(13)
    model = Decoder()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    gen = torch.Generator().manual_seed(31)
    probe_x, probe_y = batch_of(256, torch.Generator().manual_seed(32))

    for step in range(args.steps):
        x, y = batch_of(args.batch, gen)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        norm = clip_gradients(list(model.parameters()), args.clip)
        opt.step()
        warm.step()
        if step % 25 == 0 or step == args.steps - 1:
            with torch.no_grad():
                hit = (model(probe_x).argmax(-1) == probe_y).float().mean()
            if rank == 0:
                print(f"{step:4d}  loss {loss.item():.3f}  grad {norm:.3f}  probe {hit.item():.3f}", flush=True)

    save(model, args.folder, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
