from pathlib import Path

import numpy as np
import torch


def write_corpus(path: Path, tokens: int, vocab: int, language: int, seed: int):
    """Order-1 Markov text, stored as raw uint16."""
    table = np.random.default_rng(language).dirichlet(np.full(vocab, 0.08), size=vocab)
    table = table.cumsum(axis=1)
    rng = np.random.default_rng(seed)
    out = np.empty(tokens, dtype=np.uint16)
    state = 0
    draws = rng.random(tokens)
    for i in range(tokens):
        state = min(int(np.searchsorted(table[state], draws[i])), vocab - 1)
        out[i] = state
    out.tofile(path)


class PackedReader:
    """Fixed windows over a flat token file, in a new order every epoch.

    Iteration is endless; position and epoch can be stored and restored.
    """

    def __init__(self, path, context, batch_size, process_rank, num_processes, seed=42,
                 shuffle=True):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.context, self.batch_size = context, batch_size
        self.process_rank, self.num_processes = process_rank, num_processes
        self.shuffle = shuffle
        self.windows = (len(self.tokens) - 1) // context
        self.per_epoch = self.windows // (batch_size * num_processes)
        self.rng = np.random.default_rng(seed)
        self.epoch, self.position = 0, 0
        self._reorder()

    def _reorder(self):
        self.order = np.arange(self.windows)
        if self.shuffle:
            self.rng.shuffle(self.order)

    def __len__(self):
        return self.per_epoch

    def next_batch(self):
        if self.position >= self.per_epoch:
            self.epoch += 1
            self.position = 0
            self._reorder()
        first = (self.position * self.num_processes + self.process_rank) * self.batch_size
        picked = self.order[first:first + self.batch_size]
        self.position += 1
        rows = np.stack([self.tokens[w * self.context:w * self.context + self.context + 1]
                         for w in picked]).astype(np.int64)
        rows = torch.from_numpy(rows)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}
