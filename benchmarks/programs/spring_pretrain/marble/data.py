import numpy as np
import torch


def build_bin(path, num_samples, seq_len, vocab, seed):
    """Tokenized corpus as one flat uint16 file; sample i is tokens[i*seq_len : (i+1)*seq_len + 1]."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, vocab, size=(vocab, 3))
    picks = rng.integers(0, 3, size=num_samples * seq_len + 1)
    toks = np.empty(len(picks), dtype=np.uint16)
    cur = 0
    for i, p in enumerate(picks):
        cur = table[cur, p]
        toks[i] = cur
    toks.tofile(path)


class GlobalBatchSize:
    """--rampup-batch-size START INCREMENT STEPS, then constant."""

    def __init__(self, start, increment, every, target):
        self.start, self.increment, self.every, self.target = start, increment, every, target

    def __call__(self, step):
        return min(self.target, self.start + self.increment * (step // self.every))

    def total(self, steps):
        return sum(self(s) for s in range(steps))


class TokenLoader:
    """Walks a fixed shuffle of the samples; every rank takes its slice of the global batch."""

    def __init__(self, path, num_samples, seq_len, gbs, rank, world, seed):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.order = np.random.default_rng(seed).permutation(num_samples)
        self.seq_len, self.gbs = seq_len, gbs
        self.rank, self.world = rank, world
        self.consumed = 0

    def _sample(self, i):
        lo = int(i) * self.seq_len
        return torch.from_numpy(self.tokens[lo:lo + self.seq_len + 1].astype(np.int64))

    def batch(self, step):
        size = self.gbs(step)
        start = self.consumed
        self.consumed += size
        ids = self.order[np.arange(start, start + size) % len(self.order)]
        local = size // self.world
        mine = ids[self.rank * local:(self.rank + 1) * local]
        rows = torch.stack([self._sample(i) for i in mine])
        return rows[:, :-1], rows[:, 1:]
