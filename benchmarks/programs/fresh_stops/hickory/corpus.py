"""Name generator corpus: syllables glued together."""
import collections
import itertools
import random

import torch

SYLLABLES = [a + b for a, b in itertools.product("bdfgklmnprstvz", "aeiou")]


def names(n, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) for _ in range(n)]


def alphabet():
    return ["."] + sorted({c for s in SYLLABLES for c in s})


def describe(lines, rounds=9):
    """Counts of letter groups, for the report at the head of the log."""
    tables = []
    for k in range(1, rounds):
        seen = collections.Counter()
        for line in lines:
            padded = "." * k + line + "."
            seen.update(padded[i:i + k] for i in range(len(padded) - k + 1))
        tables.append((k, len(seen), seen.most_common(2)))
    return tables


def tensorise(lines, ctx=6):
    index = {c: i for i, c in enumerate(alphabet())}
    xs, ys = [], []
    for line in lines:
        window = [0] * ctx
        for ch in line + ".":
            xs.append(window)
            ys.append(index[ch])
            window = window[1:] + [index[ch]]
    return torch.tensor(xs), torch.tensor(ys)
