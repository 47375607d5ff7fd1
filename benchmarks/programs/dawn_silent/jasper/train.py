import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from engine import StepEngine, copy_to_tp, reduce_from_tp

VOCAB, PERIOD, SEQ = 48, 9, 40


def full_init(gen, rows, cols):
    return torch.randn(rows, cols, generator=gen) * cols ** -0.5


class Attention(nn.Module):
    """Heads are split over TP ranks; queries and keys are normalised per head."""

    def __init__(self, dim, heads, gen, rank, world):
        super().__init__()
        self.hd, self.nh = dim // heads, heads // world
        sl = slice(rank * self.nh * self.hd, (rank + 1) * self.nh * self.hd)
        self.wq = nn.Parameter(full_init(gen, dim, dim)[sl].clone())
        self.wk = nn.Parameter(full_init(gen, dim, dim)[sl].clone())
        self.wv = nn.Parameter(full_init(gen, dim, dim)[sl].clone())
        self.wo = nn.Parameter(full_init(gen, dim, dim)[:, sl].clone())
        self.q_norm, self.k_norm = nn.RMSNorm(self.hd), nn.RMSNorm(self.hd)
        self.q_norm.weight.sum_over_tp = True
        self.k_norm.weight.sum_over_tp = True

    def forward(self, x):
        b, s, _ = x.shape
        x = copy_to_tp(x)
        q, k, v = (F.linear(x, w).view(b, s, self.nh, self.hd).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, s, -1)
        return reduce_from_tp(F.linear(y, self.wo))


class FeedForward(nn.Module):
    def __init__(self, dim, gen, rank, world):
        super().__init__()
        h = 4 * dim // world
        self.up = nn.Parameter(full_init(gen, 4 * dim, dim)[rank * h:(rank + 1) * h].clone())
        self.down = nn.Parameter(full_init(gen, dim, 4 * dim)[:, rank * h:(rank + 1) * h].clone())

    def forward(self, x):
        return reduce_from_tp(F.linear(F.gelu(F.linear(copy_to_tp(x), self.up)), self.down))


class TinyLM(nn.Module):
    def __init__(self, dim, heads, layers, seed, rank, world):
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.emb = nn.Parameter(torch.randn(VOCAB, dim, generator=gen) * 0.5)
        self.pos = nn.Parameter(torch.randn(SEQ, dim, generator=gen) * 0.5)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            self.blocks.append(nn.ModuleList([
                nn.LayerNorm(dim), Attention(dim, heads, gen, rank, world),
                nn.LayerNorm(dim), FeedForward(dim, gen, rank, world)]))
        self.norm = nn.LayerNorm(dim)

    def forward(self, idx):
        x = self.emb[idx] + self.pos[: idx.size(1)]
        for n1, attn, n2, mlp in self.blocks:
            x = x + attn(n1(x))
            x = x + mlp(n2(x))
        return F.linear(self.norm(x), self.emb)


def lm_loss(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))


def make_batch(gen, n):
    motif = torch.randint(0, VOCAB, (n, PERIOD), generator=gen)
    return motif.repeat(1, SEQ // PERIOD + 2)[:, : SEQ + 1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    model = TinyLM(dim=64, heads=4, layers=2, seed=11, rank=rank, world=world)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    engine = StepEngine(model, lm_loss, opt)
    data = torch.Generator().manual_seed(5)
    for step in range(args.steps):
        if args.accum == 1:
            loss = engine.train(make_batch(data, 16))
        else:
            engine.begin()
            loss = sum(engine.microbatch(make_batch(data, 16)) for _ in range(args.accum)) / args.accum
            engine.finish()
        if rank == 0 and step % 25 == 0:
            print(f"step {step:4d} loss {loss:.4f}", flush=True)
    if rank == 0:
        print(f"final loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
