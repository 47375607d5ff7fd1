import numpy as np
import torch


def build_corpus(n_tokens: int, vocab: int, seed: int = 7) -> torch.Tensor:
    """Order-2 Markov text, deterministic so every worker builds the same corpus."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, vocab, size=(vocab, vocab, 4))
    pick = rng.choice(4, size=n_tokens, p=[0.6, 0.2, 0.15, 0.05])
    out = np.empty(n_tokens, dtype=np.int64)
    a, b = 0, 1
    for i in range(n_tokens):
        c = table[a, b, pick[i]]
        out[i] = c
        a, b = b, c
    return torch.from_numpy(out)


class ShardWindows:
    """Shuffled, non-overlapping windows of one contiguous corpus shard; reshuffles on every pass."""

    def __init__(self, tokens, block, batch, seed):
        n = (len(tokens) - 1) // block
        self.x = tokens[: n * block].view(n, block)
        self.y = tokens[1 : n * block + 1].view(n, block)
        self.batch = batch
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.x), generator=self.gen)
            for i in range(0, len(order) - self.batch + 1, self.batch):
                idx = order[i : i + self.batch]
                yield self.x[idx], self.y[idx]
