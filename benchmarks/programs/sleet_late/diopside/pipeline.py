from itertools import chain, count, islice

import numpy as np
import torch


def series_bank(n=1500, length=32, seed=5):
    g = np.random.default_rng(seed)
    t = np.arange(length + 1)
    freq = g.uniform(0.05, 0.5, size=(n, 1))
    phase = g.uniform(0, 6.28, size=(n, 1))
    x = np.sin(freq * t + phase) + 0.1 * g.standard_normal((n, length + 1))
    return torch.tensor(x, dtype=torch.float32)


def mix_seed(*parts):
    h = 2166136261
    for p in parts:
        h = ((h ^ int(p)) * 16777619) & 0xFFFFFFFF
    return h


def rng_for(ctx, pass_no):
    return np.random.default_rng(mix_seed(ctx.seed, pass_no, *ctx.salt))


def visiting_order(n, rng):
    return iter(rng.permutation(n).tolist())


def share(order, ctx):
    """Every world-th element, starting from our own position."""
    return islice(order, ctx.rank, None, ctx.world)


def passes(n, ctx, first):
    for k in count(first):
        yield share(visiting_order(n, rng_for(ctx, k)), ctx)


def grouped(it, size):
    while True:
        block = list(islice(it, size))
        if not block:
            return
        yield block


def epoch_batches(bank, ctx, epoch, batch, steps):
    idx = chain.from_iterable(passes(len(bank), ctx, first=epoch * 1000))
    for block in islice(grouped(idx, batch), steps):
        window = bank[torch.tensor(block)]
        yield window[:, :-1], window[:, -1:]
