import random

import torch
from torch import nn

ONES = "nil uno duo tre qua cin sei set oct nov".split()


def digit_words(n, seed, length=5):
    """Five digits become five words in reversed order, odd digits are doubled in sound."""
    rng = random.Random(seed)
    vocab = ["<s>"] + ONES + [w + "-" + w for w in ONES]
    pairs = []
    for _ in range(n):
        src = [rng.randrange(10) for _ in range(length)]
        dst = [0] + [1 + d + (10 if d % 2 else 0) for d in reversed(src)]
        pairs.append((src, dst))
    return pairs, list(range(10)), vocab


class Seq2Seq(nn.Module):
    def __init__(self, src, dst, dim):
        super().__init__()
        self.src, self.dst = nn.Embedding(src, dim), nn.Embedding(dst, dim)
        self.enc = nn.GRU(dim, dim, batch_first=True)
        self.dec = nn.GRUCell(2 * dim, dim)
        self.att = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(2 * dim, dst)

    def encode(self, src):
        mem, h = self.enc(self.src(src))
        return mem, h[0]

    def step(self, prev, h, mem):
        w = (self.att(mem) @ h[:, :, None]).squeeze(-1).softmax(-1)
        ctx = (w[:, :, None] * mem).sum(1)
        h = self.dec(torch.cat([self.dst(prev), ctx], -1), h)
        return self.out(torch.cat([h, ctx], -1)).log_softmax(-1), h

    def loss(self, src, dst):
        mem, h = self.encode(src)
        total = 0.0
        for t in range(dst.size(1) - 1):
            logp, h = self.step(dst[:, t], h, mem)
            total = total + nn.functional.nll_loss(logp, dst[:, t + 1])
        return total / (dst.size(1) - 1)
