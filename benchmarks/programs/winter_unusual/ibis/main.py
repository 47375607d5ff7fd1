"""Long-context language model, sequence dimension split over the ranks."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors as flatten, _unflatten_dense_tensors as unflatten

from context import ContextAttention, zigzag

IGNORE = -100
log = logging.getLogger("ibis")


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = ContextAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attn(self.n1(x), mask)
        return x + self.mlp(self.n2(x))


class LongLM(nn.Module):
    def __init__(self, vocab, dim, heads, depth, length, rank, world):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)
        here = zigzag(length, rank, world)
        everywhere = torch.cat([zigzag(length, r, world) for r in range(world)])
        self.register_buffer("here", here, persistent=False)
        self.register_buffer("mask", here[:, None] >= everywhere[None, :], persistent=False)

    def forward(self, x):
        h = self.tok(x) + self.pos(self.here)
        for layer in self.layers:
            h = layer(h, self.mask)
        return self.head(self.norm(h))


def documents(vocab, length, batch, seed):
    """A noisy-permutation motif repeated over the document; padding after a random cut is not scored."""
    g = torch.Generator().manual_seed(seed)
    follow = torch.randperm(vocab - 1, generator=g) + 1
    while True:
        period = 24
        motif = torch.randint(1, vocab, (batch, period), generator=g)
        keep = torch.rand(batch, period, generator=g) < 0.9
        for i in range(1, period):
            motif[:, i] = torch.where(keep[:, i], follow[motif[:, i - 1] - 1], motif[:, i])
        seq = motif.repeat(1, length // period + 2)[:, : length + 1]
        cut = torch.randint(length // 3, length + 1, (batch, 1), generator=g)
        x, y = seq[:, :-1].clone(), seq[:, 1:].clone()
        pad = torch.arange(length)[None] >= cut
        x[pad], y[pad] = 0, IGNORE
        yield x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=70)
    ap.add_argument("--length", type=int, default=192)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(17)
    model = LongLM(64, args.dim, 4, 2, args.length, rank, world)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    params = list(model.parameters())
    stream = documents(64, args.length, args.batch, seed=23)

    for step in range(args.steps):
        x, y = next(stream)
        n_scored = (y != IGNORE).sum()
        x, y = x[:, model.here], y[:, model.here]
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum") / n_scored
        opt.zero_grad(set_to_none=True)
        loss.backward()
        grads = [p.grad for p in params]
        flat = flatten(grads + [loss.detach().reshape(1)])
        dist.all_reduce(flat)
        for p, g in zip(params, unflatten(flat, grads)):
            p.grad = g
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if step % 10 == 0 or step + 1 == args.steps:
            log.info("step %d loss %.4f (%d scored tokens)", step, flat[-1].item(), n_scored.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
